"""What is read from recordings, as rich renderables. Texts are never markup; see `waystation.presentation.terminal`."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from waystation.core.answer import PendingCall
from waystation.core.event import Event
from waystation.core.payload import JsonObject
from waystation.presentation import terminal
from waystation.replay.difference import Changes, MomentDifference, PromptDifference, RecordingDifference
from waystation.replay.prompt import Prompt
from waystation.replay.recording import Moment, Recording

_BOLD, _DIM = "bold", "dim"
_GONE, _NEW = "red", "green"
MAX_EVENTS = 200
"""How many events are shown of a recording, or side by side with those that are the same in another one."""
CONTEXT = 2
"""So many events that are the same are shown around those that differ, when there are too many."""


def said(event: Event) -> Text:
    """Return what an event says, a fact a line."""
    return Text("\n").join(line.styled() for line in terminal.lines_of(event)) or Text("nothing is said", _DIM)


def recording(shown: Recording) -> RenderableType:
    """Return the events of a recording, numbered."""
    runs = f", {len(shown.histories)} runs" if len(shown.histories) > 1 else ""
    called = f", {len(shown.called)} called agents" if shown.called else ""
    count = len(shown.events)
    title = Text.assemble((terminal.safe(shown.id), _BOLD), f"  {count} event{'s' * (count != 1)}{runs}{called}")
    if count <= MAX_EVENTS:
        return Group(title, _events(shown.events, shown.events_before))
    half = MAX_EVENTS // 2
    first, last = (
        _events(shown.events[:half], shown.events_before),
        _events(shown.events[-half:], shown.moment().number - half),
    )
    return Group(title, first, Text(f"… {count - 2 * half} events between", _DIM), last)


def _events(events: Iterable[Event], before: int) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style=_DIM, no_wrap=True)
    table.add_column(style=_DIM, no_wrap=True)
    table.add_column(overflow="fold")
    for number, event in enumerate(events, before + 1):
        table.add_row(str(number), terminal.clock(event.timestamp), said(event))
    return table


def where(moment: Moment) -> Text:
    """Return which moment it is."""
    last = moment.recording.course[-1].events
    name = f"event {moment.number} of {last}" if moment.number else f"before event 1 of {last}"
    when = terminal.clock(moment.time) if moment.time else ""
    return Text.assemble((name, _BOLD), (f"  {when}  {terminal.safe(moment.recording.id)}", _DIM))


def moment(shown: Moment) -> RenderableType:
    """Return the event of a moment, the state with what it changed, and what waited."""
    parts: list[RenderableType] = [where(shown)]
    if shown.event:
        parts.append(said(shown.event))
    before = shown.before
    parts.append(state(shown.state, Changes.between(before.state if before else {}, shown.state)))
    parts += [wait(call, shown) for call in shown.pending]
    return Group(*parts)


def state(held: JsonObject, changes: Changes | None = None) -> RenderableType:
    """Return a state, a key a line, with what changed set off."""
    table = _keys()
    for key, value in held.items():
        text = terminal.short_json(value)
        if changes and key in changes.added:
            table.add_row(Text("+", _NEW), Text(terminal.safe(key), _NEW), Text(text, _NEW))
        elif changes and key in changes.changed:
            was = Text.assemble((text, "yellow"), (f"   was {terminal.short_json(changes.changed[key][0])}", _DIM))
            table.add_row(Text("~", "yellow"), Text(terminal.safe(key), "yellow"), was)
        else:
            table.add_row("", Text(terminal.safe(key)), Text(text))
    for key, value in changes.removed.items() if changes else ():
        table.add_row(Text("-", _GONE), Text(terminal.safe(key), _GONE), Text(terminal.short_json(value), _GONE))
    return Group(Text("state", _BOLD), table if table.row_count else Text("  empty", _DIM))


def changes(found: Changes) -> Table:
    """Return only what differs."""
    table = _keys()
    for key, value in found.added.items():
        table.add_row(Text("+", _NEW), Text(terminal.safe(key), _NEW), Text(terminal.short_json(value), _NEW))
    for key, (before, after) in found.changed.items():
        text = Text.assemble((terminal.short_json(before), _GONE), " → ", (terminal.short_json(after), _NEW))
        table.add_row(Text("~", "yellow"), Text(terminal.safe(key), "yellow"), text)
    for key, value in found.removed.items():
        table.add_row(Text("-", _GONE), Text(terminal.safe(key), _GONE), Text(terminal.short_json(value), _GONE))
    return table


def _keys() -> Table:
    table = Table(box=None, pad_edge=True, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=32)
    table.add_column(overflow="fold")
    return table


def wait(call: PendingCall, at: Moment) -> Text:
    """Return what waited at a moment, and what became of it later."""
    since = at.time - call.requested_at
    kind = {"confirmation": "waits for approval", "credential": "waits for a login", "budget": "asks for more budget"}
    text = Text.assemble(
        (kind.get(call.kind, "waits for an answer"), "bold yellow"),
        f"  {terminal.asked(call)} [{call.function_call_id}]",
        (f"\n  {f'for {terminal.span(since)}' if since else 'from now on'}, until {_date(call.deadline)}", _DIM),
    )
    ended = _answered(call, at)
    return text.append(f"; {ended}" if ended else "", _DIM)


def _answered(call: PendingCall, at: Moment) -> str:
    """Return what became of a wait after the moment."""
    found = at.recording.log.calls.get(call.function_call_id)
    if found is None or found.waiting:
        return "and still waits where the recording ends" if found and at.recording.log.ended is None else ""
    if found.expired:
        return "nobody answered in time"
    if found.answer and found.answered_at is not None:
        by = f" by {terminal.safe(found.answered_by)}" if found.answered_by else ""
        done = {"approve": "approved", "reject": "rejected", "edit": "edited and approved", "respond": "answered"}
        word = done.get(found.answer.action, f"answered ({found.answer.action})")
        return f"later {word}{by}, {terminal.span(found.answered_at - call.requested_at)} after it began"
    return ""


def _date(timestamp: float) -> str:
    return terminal.until(timestamp, timestamp).split(",")[0]


def prompt(shown: Prompt) -> RenderableType:
    """Return a prompt as a model reads it: instruction, tools, contents."""
    which = f"model call {shown.call}" if shown.call else "its model was not asked after it; it would be given this"
    gave = f", which gave event {shown.gave}" if shown.gave else ""
    title = Text.assemble((f"prompt at event {shown.at}", _BOLD), f"  {terminal.safe(shown.agent)}, {which}{gave}")
    parts: list[RenderableType] = [title, verdict(shown)]
    parts += [Text(terminal.safe(remark), _DIM) for remark in shown.remarks]
    if shown.whole:
        settings = {"model": shown.model, **shown.config}
        parts.append(_section("settings", Text(terminal.short_json(settings, terminal.MAX_TEXT))))
        lines = (terminal.clipped(shown.instruction or "none")).splitlines()
        parts.append(_section("instruction", Text("\n".join(map(terminal.safe, lines)))))
        parts.append(_section(f"tools ({len(shown.tools) + len(shown.native_tools)})", *_tools(shown)))
    parts.append(_section(f"contents ({len(shown.contents)})", *map(content, shown.contents)))
    return Group(*parts)


def verdict(shown: Prompt) -> Text:
    """Return how far a prompt is the recorded one."""
    match shown.exact:
        case True:
            return Text("exactly as the model saw it: the agent is as recorded", "green")
        case False:
            return Text("not as the model saw it: the agent has changed since", "bold yellow")
        case _:
            return Text("as far as it is known:" if shown.remarks else "rebuilt from the log", "yellow")


def _tools(shown: Prompt) -> Iterable[Text]:
    for tool in shown.tools:
        schema = tool.get("parametersJsonSchema") or {}
        names = ", ".join(schema.get("properties") or ())
        first = str(tool.get("description") or "").strip().split("\n")[0]
        yield Text.assemble((terminal.safe(str(tool.get("name"))), "yellow"), terminal.safe(f"({names})"), "  ").append(
            terminal.safe(first), _DIM
        )
    for tool in shown.native_tools:
        yield Text(terminal.short_json(tool), "yellow")


def content(shown: JsonObject) -> Text:
    """Return one content of a prompt, a part a line."""
    role = Text.assemble((f"{terminal.safe(str(shown.get('role') or '?')):5} ", _BOLD))
    lines = [_part(part) for part in shown.get("parts") or ()]
    return role + (Text("\n      ").join(lines) if lines else Text("empty", _DIM))


def _part(part: JsonObject) -> Text:
    if text := part.get("text"):
        lines = map(terminal.safe, terminal.clipped(str(text)).splitlines())
        return Text("\n      ".join(lines), _DIM if part.get("thought") else "")
    if call := part.get("functionCall"):
        return Text(
            f"calls {terminal.safe(str(call.get('name')))}({terminal.short_json(call.get('args') or {})})", "yellow"
        )
    if response := part.get("functionResponse"):
        text = f"{terminal.safe(str(response.get('name')))} answers {terminal.short_json(response.get('response'))}"
        return Text(text, "cyan")
    return Text(terminal.short_json(part), _DIM)


def _section(title: str, *body: RenderableType) -> RenderableType:
    return Group(Text(""), Text(title, _BOLD), *(Padding(each, (0, 0, 0, 2), expand=False) for each in body))


def moment_difference(shown: MomentDifference) -> RenderableType:
    """Return what became of the state, and which events did it."""
    before, after = shown.before.number, shown.after.number
    parts: list[RenderableType] = [Text.assemble((f"event {before} → {after}", _BOLD))]
    parts.append(changes(shown.state) if shown.state else Text("  the state is the same", _DIM))
    parts += [
        Text(f"  began to wait: {terminal.asked(call)} [{call.function_call_id}]") for call in shown.began_to_wait
    ]
    parts += [
        Text(f"  waits no more: {terminal.asked(call)} [{call.function_call_id}]") for call in shown.waits_no_more
    ]
    return Group(*parts)


def prompt_difference(shown: PromptDifference) -> RenderableType:
    """Return what was added to a prompt, and what else changed in it."""
    parts: list[RenderableType] = [Text(f"prompt at event {shown.before.at} → {shown.after.at}", _BOLD)]
    if shown.before.agent != shown.after.agent:
        parts.append(Text(f"of {terminal.safe(shown.before.agent)} → {terminal.safe(shown.after.agent)}"))
    if shown.config:
        parts.append(_section("settings", changes(shown.config)))
    if shown.instruction:
        parts.append(
            _section("instruction", *(Text(terminal.safe(line), _of_sign(line[:1])) for line in shown.instruction))
        )
    if shown.tools:
        parts.append(_section("tools", changes(shown.tools)))
    if shown.contents:
        lines = [Text.assemble((f"{sign} ", _of_sign(sign)), content(each)) for sign, each in shown.contents]
        parts.append(_section("contents", *lines))
    if not shown:
        parts.append(Text("  the same", _DIM))
    return Group(*parts)


def _of_sign(sign: str) -> str:
    return {"-": _GONE, "+": _NEW, "@": _DIM}.get(sign, "")


def recording_difference(shown: RecordingDifference, *, context: int | None = None) -> RenderableType:
    """Return the events of two recordings side by side; with `context`, only so many same ones around others."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=True)
    for each in (shown.left, shown.right):
        table.add_column("#", justify="right", style=_DIM, no_wrap=True)
        table.add_column(terminal.safe(each.source), ratio=1, overflow="fold")
    left_out = 0
    for index, pair in enumerate(shown.pairs):
        near = shown.pairs[max(index - (context or 0), 0) : index + (context or 0) + 1]
        if context is not None and all(each.same for each in near):
            left_out += 1
            continue
        if left_out:
            table.add_row("", Text(f"… {left_out} the same", _DIM), "", "")
            left_out = 0
        style = _DIM if pair.same else ("bold reverse" if pair is shown.first else "")
        left, right = _side(shown.left, pair.left, _GONE, style), _side(shown.right, pair.right, _NEW, style)
        table.add_row(*left, *right)
    if left_out:
        table.add_row("", Text(f"… {left_out} the same", _DIM), "", "")
    parts: list[RenderableType] = [table]
    if shown.first is None:
        return Group(table, Text("The same happened in both.", "bold green"))
    parts.append(_parting(shown))
    if shown.state:
        parts.append(Group(Text("state there", _BOLD), changes(shown.state)))
    return Group(*parts)


def _side(of: Recording, number: int | None, colour: str, style: str) -> Sequence[Any]:
    if number is None:
        return "", Text("—", _DIM)
    event = of.moment(number).event
    assert event
    text = said(event)
    if style == _DIM:
        return str(number), Text(text.plain, _DIM)
    return Text(str(number), style), Text(text.plain, f"{colour} {'bold' if style else ''}".strip())


def _parting(shown: RecordingDifference) -> Text:
    assert shown.first
    at = [f"event {n}" if n else "nothing" for n in (shown.first.left, shown.first.right)]
    return Text.assemble(("First difference: ", "bold red"), f"{at[0]} on the left, {at[1]} on the right.")
