"""Parts of the views of recordings, moments, prompts and differences, for terminals and notebooks.

Text is never interpreted as markup; see `waystation.presentation.terminal`.
"""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from waystation.core.approval import PendingCall
from waystation.core.contract import Event
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.presentation import terminal, words
from waystation.replay.changes import Changes

BOLD, DIM, BAD = "bold", "dim", "red"
GONE, CHANGED, NEW = "red", "yellow", "green"
MAX_EVENTS = 200
"""Maximum number of events of a recording to show without a gap, and of event pairs to show in a full comparison."""
STYLES = {"-": GONE, "~": CHANGED, "+": NEW, "@": DIM}
"""Styles of removed (`-`), changed (`~`) and added (`+`) lines, and of the headers between diff sections (`@`)."""


def format_event(event: Event) -> Text:
    """Return an event as text, with one fact per line."""
    return Text("\n").join(line.styled() for line in terminal.format_event(event)) or Text("no content", DIM)


def list_events(events: Iterable[Event], before: int) -> Table:
    """Return a table of events. The first one follows event number `before`."""
    table = grid(
        Column(justify="right", style=DIM, no_wrap=True), Column(style=DIM, no_wrap=True), Column(overflow="fold")
    )
    for number, event in enumerate(events, before + 1):
        table.add_row(str(number), terminal.format_time(event.timestamp), format_event(event))
    return table


def format_state(state: JsonObject, changes: Changes) -> RenderableType:
    """Return a state, with one key per line and its changes highlighted."""
    table = format_changes(changes, state)
    return Group(Text("state", BOLD), table if table.row_count else Text("  empty", DIM))


def format_changes(changes: Changes, state: JsonObject | None = None) -> Table:
    """Return changes, with one key per line or, with the `state` after them, that state and what was removed."""
    table = grid(
        *(Column(no_wrap=True), Column(overflow="fold", max_width=32), Column(overflow="fold")),
        padding=(0, 1, 0, 1),
        pad_edge=True,
    )
    values = {**(state or {}), **changes.added, **changes.removed}
    for key in (*((*changes.added, *changes.changed) if state is None else state), *changes.removed):
        signs = {"~": changes.changed, "+": changes.added, "-": changes.removed}
        sign = next((sign for sign, keys in signs.items() if key in keys), "")
        if sign != "~":
            text = Text(terminal.clip_json(values[key], name=key), STYLES.get(sign, ""))
        else:
            before, after = (terminal.clip_json(value, name=key) for value in changes.changed[key])
            pieces = (
                ((before, GONE), " → ", (after, NEW))
                if state is None
                else ((after, CHANGED), (f"   was {before}", DIM))
            )
            text = Text.assemble(*pieces)
        table.add_row(Text(sign, STYLES.get(sign, "")), Text(terminal.escape(key), STYLES.get(sign, "")), text)
    return table


def format_pending_call(call: PendingCall, time: float, log: Log) -> Text:
    """Describe a call that was pending at a time, including how it was decided later according to the log."""
    since, outcome = time - call.requested_at, _outcome(call, log)
    kind = {
        "confirmation": "waiting for approval",
        "credential": "waiting for a login",
        "budget": "waiting for more budget",
    }
    waited = f"for {terminal.format_span(since)}" if since else "since now"
    return Text.assemble(
        (kind.get(call.kind, "waiting for an answer"), "bold yellow"),
        f"  {terminal.format_call(call)} [{call.function_call_id}]",
        (f"\n  {waited}, until {terminal.format_date(call.deadline)}{f'; {outcome}' if outcome else ''}", DIM),
    )


def _outcome(call: PendingCall, log: Log) -> str:
    """Describe what happened later to a pending call, or return an empty string if that is unknown."""
    state = log.state
    later = state.calls.get(call.function_call_id)
    if later is None or later.waiting:
        return "still pending at the end of the recording" if later and state.outcome.ended is None else ""
    if later.answer and later.answered_at is not None:
        waited = terminal.format_span(later.answered_at - call.requested_at)
        return f"later {words.decision(later)}, {waited} after the request"
    return words.decision(later)


def format_content(content: JsonObject) -> Text:
    """Return one of a prompt's contents as text, with each part on a new line."""
    role = Text.assemble((f"{terminal.escape(str(content.get('role') or '?')):5} ", BOLD))
    lines = [_part(part) for part in content.get("parts") or ()]
    return role + (Text("\n      ").join(lines) if lines else Text("empty", DIM))


def _part(part: JsonObject) -> Text:
    match part:
        case {"text": text} if text:
            lines = map(terminal.escape, terminal.clip(str(text)).splitlines())
            return Text("\n      ".join(lines), DIM if part.get("thought") else "")
        case {"functionCall": call} if call:
            args = terminal.clip_json(call.get("args") or {})
            return Text(f"calls {terminal.escape(str(call.get('name')))}({args})", "yellow")
        case {"functionResponse": response} if response:
            result = terminal.clip_json(response.get("response"))
            return Text(f"{terminal.escape(str(response.get('name')))} answers {result}", "cyan")
        case _:
            return Text(terminal.clip_json(part), DIM)


def section(title: str, *body: RenderableType) -> RenderableType:
    """Return a titled, indented part of a view."""
    return Group(Text(""), Text(title, BOLD), *(Padding(line, (0, 0, 0, 2), expand=False) for line in body))


def grid(*columns: Column, padding: tuple[int, int, int, int] = (0, 2, 0, 0), pad_edge: bool = False) -> Table:
    """Return a table without lines and headings."""
    return Table(*columns, box=None, show_header=False, padding=padding, pad_edge=pad_edge)
