"""Recordings, moments, prompts, reruns and differences as Rich renderables, for terminals and notebooks.

Text is never interpreted as markup; see `waystation.presentation.terminal`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

from waystation.core import Event, JsonObject, PendingCall, hide_secrets_at
from waystation.presentation import terminal, words
from waystation.replay import (
    Changes,
    ModelRerun,
    Moment,
    MomentDifference,
    Pair,
    Prompt,
    PromptDifference,
    Recording,
    RecordingDifference,
)
from waystation.replay.comparison import ABSENT, Rerun

if TYPE_CHECKING:
    from waystation.presentation.cursor import Cursor

_BOLD, _DIM = "bold", "dim"
_GONE, _CHANGED, _NEW = "red", "yellow", "green"
_BAD = "red"
MAX_EVENTS = 200
"""Maximum number of events of a recording to show without a gap, and of event pairs to show in a full comparison."""
CONTEXT = 2
"""Number of pairs to show before and after each difference in a comparison that is not shown in full."""
_STYLES = {"-": _GONE, "~": _CHANGED, "+": _NEW, "@": _DIM}
"""Styles of removed (`-`), changed (`~`) and added (`+`) lines, and of the headers between diff sections (`@`)."""
AROUND = 2
"""Number of events to show before and after the current one."""
MAX_STATE = 30
"""Maximum number of state keys to show. Changed keys come first."""


def format_event(event: Event) -> Text:
    """Return an event as text, with one fact per line."""
    return Text("\n").join(line.styled() for line in terminal.format_event(event)) or Text("no content", _DIM)


@singledispatch
def render(value: object) -> RenderableType:
    """Return the Rich renderable for a recording, a moment, a prompt, a rerun or a difference."""
    raise TypeError(f"Cannot display a value of type {type(value).__name__}.")


@render.register
def _render_recording(recording: Recording) -> RenderableType:
    count, runs = len(recording.events), len(recording.histories)
    facts = [f"{count} event{'s' * (count != 1)}"]
    facts += [f"{runs} runs"] * (runs > 1) + [f"{len(recording.called)} called agents"] * bool(recording.called)
    title = Text.assemble((terminal.escape(recording.id), _BOLD), f"  {', '.join(facts)}")
    if count <= MAX_EVENTS:
        return Group(title, _events(recording.events, recording.events_before))
    half = MAX_EVENTS // 2
    first = _events(recording.events[:half], recording.events_before)
    last = _events(recording.events[-half:], recording.moment().number - half)
    return Group(title, first, Text(f"… {count - 2 * half} events between", _DIM), last)


def _events(events: Iterable[Event], before: int) -> Table:
    table = _grid(
        Column(justify="right", style=_DIM, no_wrap=True), Column(style=_DIM, no_wrap=True), Column(overflow="fold")
    )
    for number, event in enumerate(events, before + 1):
        table.add_row(str(number), terminal.format_time(event.timestamp), format_event(event))
    return table


def format_position(moment: Moment) -> Text:
    """Describe a moment's position in its recording, such as `event 3 of 12`, with its time and the invocation ID."""
    last = moment.recording.course[-1].events
    name = f"event {moment.number} of {last}" if moment.number else f"before event 1 of {last}"
    when = terminal.format_time(moment.time) if moment.time else ""
    return Text.assemble((name, _BOLD), (f"  {when}  {terminal.escape(moment.recording.id)}", _DIM))


@render.register
def _render_moment(moment: Moment) -> RenderableType:
    state_before = moment.before.state if moment.before else {}
    parts: list[RenderableType] = [format_position(moment)]
    if moment.event:
        parts.append(format_event(moment.event))
    parts.append(_state(moment.state, Changes.between(state_before, moment.state)))
    return Group(*parts, *(format_pending_call(call, moment) for call in moment.pending))


def _state(state: JsonObject, changes: Changes) -> RenderableType:
    """Return a state, with one key per line and its changes highlighted."""
    table = _keys()
    for key, value in state.items():
        text = terminal.clip_json(value, name=key)
        if key in changes.changed:
            was = f"   was {terminal.clip_json(changes.changed[key][0], name=key)}"
            _add_change(table, "~", key, Text.assemble((text, _CHANGED), (was, _DIM)))
        else:
            _add_change(table, "+" if key in changes.added else "", key, text)
    _add_removed(table, changes)
    return Group(Text("state", _BOLD), table if table.row_count else Text("  empty", _DIM))


def _changes(changes: Changes) -> Table:
    table = _keys()
    for key, value in changes.added.items():
        _add_change(table, "+", key, terminal.clip_json(value, name=key))
    for key, (before, after) in changes.changed.items():
        sides = (terminal.clip_json(side, name=key) for side in (before, after))
        text = Text.assemble((next(sides), _GONE), " → ", (next(sides), _NEW))
        _add_change(table, "~", key, text)
    _add_removed(table, changes)
    return table


def _add_removed(table: Table, changes: Changes) -> None:
    for key, value in changes.removed.items():
        _add_change(table, "-", key, terminal.clip_json(value, name=key))


def _add_change(table: Table, sign: str, key: str, value: str | Text) -> None:
    style = _STYLES.get(sign, "")
    text = value if isinstance(value, Text) else Text(value, style)
    table.add_row(Text(sign, style), Text(terminal.escape(key), style), text)


def _keys() -> Table:
    sign, key, value = Column(no_wrap=True), Column(overflow="fold", max_width=32), Column(overflow="fold")
    return _grid(sign, key, value, padding=(0, 1, 0, 1), pad_edge=True)


def format_pending_call(call: PendingCall, at: Moment) -> Text:
    """Describe a call that was pending at a moment, including how it was decided later."""
    since, outcome = at.time - call.requested_at, _outcome(call, at)
    kind = {
        "confirmation": "waiting for approval",
        "credential": "waiting for a login",
        "budget": "waiting for more budget",
    }
    waited = f"for {terminal.format_span(since)}" if since else "since now"
    return Text.assemble(
        (kind.get(call.kind, "waiting for an answer"), "bold yellow"),
        f"  {terminal.format_call(call)} [{call.function_call_id}]",
        (f"\n  {waited}, until {terminal.format_date(call.deadline)}{f'; {outcome}' if outcome else ''}", _DIM),
    )


def _outcome(call: PendingCall, at: Moment) -> str:
    """Describe what happened later to a call that was pending at a moment, or return an empty string if unknown."""
    state = at.recording.log.state
    later = state.calls.get(call.function_call_id)
    if later is None or later.waiting:
        return "still pending at the end of the recording" if later and state.outcome.ended is None else ""
    if later.answer and later.answered_at is not None:
        waited = terminal.format_span(later.answered_at - call.requested_at)
        return f"later {words.decision(later)}, {waited} after the request"
    return words.decision(later)


@render.register
def _render_prompt(prompt: Prompt) -> RenderableType:
    which = f"model call {prompt.call}" if prompt.call else "no model call follows; its prompt would be"
    reply = f", which made event {prompt.gave}" if prompt.gave else ""
    title = Text.assemble((f"prompt at event {prompt.at}", _BOLD), f"  {terminal.escape(prompt.agent)}, {which}{reply}")
    match prompt.exact:
        case True:
            verdict = Text("exactly what the model saw: the agent has not changed", "green")
        case False:
            verdict = Text("not what the model saw: the agent has changed since", "bold yellow")
        case _:
            verdict = Text("incomplete:" if prompt.remarks else "rebuilt from the log", "yellow")
    parts: list[RenderableType] = [title, verdict, *(Text(terminal.escape(remark), _DIM) for remark in prompt.remarks)]
    if prompt.whole:
        settings = terminal.clip_json({"model": prompt.model, **prompt.config}, terminal.MAX_TEXT)
        lines = terminal.clip(prompt.instruction or "none").splitlines()
        parts += [
            _section("settings", Text(settings)),
            _section("instruction", Text("\n".join(map(terminal.escape, lines)))),
            _section(f"tools ({len(prompt.tools) + len(prompt.native_tools)})", *_tools(prompt)),
        ]
    return Group(*parts, _section(f"contents ({len(prompt.contents)})", *map(_content, prompt.contents)))


def _tools(prompt: Prompt) -> Iterator[Text]:
    for tool in prompt.tools:
        names = ", ".join((tool.get("parametersJsonSchema") or {}).get("properties") or ())
        description = str(tool.get("description") or "").strip().split("\n")[0]
        name = terminal.escape(str(tool.get("name")))
        yield Text.assemble((name, "yellow"), terminal.escape(f"({names})"), "  ", (terminal.escape(description), _DIM))
    for tool in prompt.native_tools:
        yield Text(terminal.clip_json(tool), "yellow")


def _content(content: JsonObject) -> Text:
    """Return one of a prompt's contents as text, with each part on a new line."""
    role = Text.assemble((f"{terminal.escape(str(content.get('role') or '?')):5} ", _BOLD))
    lines = [_part(part) for part in content.get("parts") or ()]
    return role + (Text("\n      ").join(lines) if lines else Text("empty", _DIM))


def _part(part: JsonObject) -> Text:
    match part:
        case {"text": text} if text:
            lines = map(terminal.escape, terminal.clip(str(text)).splitlines())
            return Text("\n      ".join(lines), _DIM if part.get("thought") else "")
        case {"functionCall": call} if call:
            args = terminal.clip_json(call.get("args") or {})
            return Text(f"calls {terminal.escape(str(call.get('name')))}({args})", "yellow")
        case {"functionResponse": response} if response:
            result = terminal.clip_json(response.get("response"))
            return Text(f"{terminal.escape(str(response.get('name')))} answers {result}", "cyan")
        case _:
            return Text(terminal.clip_json(part), _DIM)


def _section(title: str, *body: RenderableType) -> RenderableType:
    return Group(Text(""), Text(title, _BOLD), *(Padding(line, (0, 0, 0, 2), expand=False) for line in body))


@render.register
def _render_moment_difference(difference: MomentDifference) -> RenderableType:
    state = _changes(difference.state) if difference.state else Text("  the state did not change", _DIM)
    waits = [("now pending", call) for call in difference.began_to_wait]
    waits += [("no longer pending", call) for call in difference.waits_no_more]
    return Group(
        Text(f"event {difference.before.number} → {difference.after.number}", _BOLD),
        state,
        *(Text(f"  {what}: {terminal.format_call(call)} [{call.function_call_id}]") for what, call in waits),
    )


@render.register
def _render_prompt_difference(difference: PromptDifference) -> RenderableType:
    before, after = difference.before, difference.after
    parts: list[RenderableType] = [Text(f"prompt at event {before.at} → {after.at}", _BOLD)]
    if before.agent != after.agent:
        parts.append(Text(f"of {terminal.escape(before.agent)} → {terminal.escape(after.agent)}"))
    if difference.config:
        parts.append(_section("settings", _changes(difference.config)))
    if difference.instruction:
        lines = [Text(terminal.escape(line), _STYLES.get(line[:1], "")) for line in difference.instruction]
        parts.append(_section("instruction", *lines))
    if difference.tools:
        parts.append(_section("tools", _changes(difference.tools)))
    if difference.contents:
        lines = [Text.assemble((f"{sign} ", _STYLES[sign]), _content(content)) for sign, content in difference.contents]
        parts.append(_section("contents", *lines))
    return Group(*parts, *([] if difference else [Text("  no difference", _DIM)]))


@render.register
def _render_recording_difference(difference: RecordingDifference) -> RenderableType:
    return format_difference(difference, context=CONTEXT if len(difference.pairs) > MAX_EVENTS else None)


def format_difference(difference: RecordingDifference, *, context: int | None = None) -> RenderableType:
    """Return the events of two recordings side by side.

    With `context`, show only that many pairs before and after each difference.
    """
    columns = [
        column
        for side in (difference.left, difference.right)
        for column in (
            Column("#", justify="right", style=_DIM, no_wrap=True),
            Column(terminal.escape(side.source), ratio=1, overflow="fold"),
        )
    ]
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=True)
    for near, pairs in itertools.groupby(difference.pairs, key=_is_near(difference.pairs, context)):
        if not near:
            table.add_row("", Text(f"… {len(list(pairs))} equal events", _DIM), "", "")
            continue
        for pair in pairs:
            style = _DIM if pair.same else ("bold reverse" if pair is difference.first else "")
            left = _side(difference.left, pair.left, _GONE, style)
            table.add_row(*left, *_side(difference.right, pair.right, _NEW, style))
    if difference.first is None:
        return Group(table, Text("Both recordings have the same events.", "bold green"))
    numbers = difference.first.left, difference.first.right
    left, right = (f"event {number}" if number else "nothing" for number in numbers)
    first = Text.assemble(("First difference: ", "bold red"), f"{left} on the left, {right} on the right.")
    parts: list[RenderableType] = [table, first]
    if difference.state:
        parts += [Text("state at that point", _BOLD), _changes(difference.state)]
    return Group(*parts)


def _is_near(pairs: Sequence[Pair], context: int | None) -> Callable[[Pair], bool]:
    """Return a predicate for pairs that differ, or are within `context` pairs of a pair that differs.

    If `context` is None, the predicate accepts all pairs.
    """
    if context is None:
        return lambda _: True
    differing = [index for index, pair in enumerate(pairs) if not pair.same]
    near = {id(pair) for index in differing for pair in pairs[max(index - context, 0) : index + context + 1]}
    return lambda pair: id(pair) in near


def _side(recording: Recording, number: int | None, color: str, style: str) -> Sequence[Any]:
    if number is None:
        return "", Text("—", _DIM)
    event = recording.moment(number).event
    assert event
    is_same = style == _DIM
    of_text = _DIM if is_same else f"{color} {'bold' if style else ''}".strip()
    return Text(str(number), "" if is_same else style), Text(format_event(event).plain, of_text)


def stop(cursor: "Cursor") -> RenderableType:
    """Return a view of a cursor's position: the event, nearby events, the log entry, the state and pending calls."""
    moment, changes = cursor.moment, cursor.changes
    parts: list[RenderableType] = [_title(cursor), _neighbors(cursor), Text("")]
    if facts := list(words.facts_of(moment, cursor.attempts)):
        table = _grid(Column(no_wrap=True, style=_DIM, min_width=8), Column(overflow="fold"))
        for fact in facts:
            text = "\n".join(map(terminal.escape, fact.text.splitlines()))
            table.add_row(fact.label, Text(text, _BAD if fact.is_failure else ""))
        parts += [table, Text("")]
    first = {key: moment.state[key] for key in (*changes.added, *changes.changed)}
    shown = dict(itertools.islice({**first, **moment.state}.items(), MAX_STATE))
    parts.append(_state(shown, changes))
    if left_out := len(moment.state) - len(shown):
        parts.append(Text(f"  … and {left_out} more keys; `:state` shows all of them", _DIM))
    for call in moment.pending:
        parts += [Text(""), format_pending_call(call, moment)]
    if called := cursor.calls():
        parts += [Text(""), Text(f"press i to enter the agent that {', '.join(called)} called", _DIM)]
    return Group(*parts)


def _title(cursor: "Cursor") -> RenderableType:
    moment, log, last = cursor.moment, cursor.recording.log, cursor.recording.course[-1].events
    name = f"{'event' if cursor.position.is_event else 'after event'} {moment.number} of {last}"
    if not moment.entries:
        name = f"before event {moment.number + 1} of {last}"
    before, ended = cursor.position.before, log.state.outcome.ended
    passed = f"  +{terminal.format_span(moment.time - before.time)}" if before and before.entries else ""
    over = f"  {ended}" if ended and moment.entries == len(log.entries) else ""
    id, when = (terminal.escape(cursor.recording.id), "cyan"), f"  {terminal.format_time(moment.time)}{passed}"
    return Group(Text.assemble(id, "  ", (name, _BOLD), when, (over, _BOLD)), Rule(style=_DIM))


def _neighbors(cursor: "Cursor") -> Table:
    recording, present = cursor.recording, cursor.moment.number
    first, last = recording.events_before + 1, recording.course[-1].events
    table = _grid(Column(justify="right", no_wrap=True), Column(overflow="fold"))
    for number in range(max(present - AROUND, first), min(present + AROUND, last) + 1):
        event = recording.moment(number).event
        assert event
        if number == present and cursor.position.is_event:
            table.add_row(Text(f"▶ {number}", _BOLD), format_event(event))
            continue
        text = format_event(event).plain.split("\n")[0]
        table.add_row(Text(str(number), _DIM), Text(text, _DIM, no_wrap=True, overflow="ellipsis"))
        if number == present:
            table.add_row(Text("▶", _BOLD), Text("no event here", "italic"))
    return table


def _grid(*columns: Column, padding: tuple[int, int, int, int] = (0, 2, 0, 0), pad_edge: bool = False) -> Table:
    return Table(*columns, box=None, show_header=False, padding=padding, pad_edge=pad_edge)


@render.register
def _render_rerun(result: Rerun) -> RenderableType:
    """Return the edited places and a table that compares the recorded and new results, with differences highlighted."""
    columns = [
        Column("", style="dim", overflow="fold"),
        *(Column(side, overflow="fold") for side in ("recorded", "now")),
    ]
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    recorded, now = result.sides()
    for name in dict.fromkeys([*recorded, *now]):
        differences = [difference for difference in result.differences if _top(difference.place) == name]
        if not differences:
            table.add_row(name, _value(name, recorded[name]), Text("unchanged", style="dim"))
        for difference in differences:
            table.add_row(
                terminal.escape(difference.place),
                _value(difference.place, difference.recorded, "red"),
                _value(difference.place, difference.now, "green"),
            )
    table.add_row("duration", *(f"{taken:.3f} s" if taken is not None else "" for taken in result.durations()))
    verdict = ("as recorded", "bold green") if result.same else ("differs", "bold yellow")
    title = Text.assemble(verdict, f"  {terminal.escape(result.what)}, run again on this machine")
    parts: list[RenderableType] = [
        title,
        table,
        *(Text(terminal.escape(remark), style="dim") for remark in result.remarks),
    ]
    if isinstance(result, ModelRerun) and result.edited:
        places = ", ".join(terminal.escape(edit.place) for edit in result.edited)
        parts.insert(0, Text.assemble(("edited  ", _BOLD), places))
    return Group(*parts)


def _top(place: str) -> str:
    return place.split(".", 1)[0].split("[", 1)[0]


def _value(place: str, value: Any, style: str = "") -> Text:
    if value is ABSENT:
        return Text("nothing", style="dim")
    value = hide_secrets_at(place, value)
    if isinstance(value, str):
        return Text("\n".join(map(terminal.escape, terminal.clip(value).splitlines())) or '""', style=style)
    return Text(terminal.clip_json(value), style=style)
