"""What is read from recordings, as rich renderables: in a terminal, and in notebooks.

Texts are never markup; see `waystation.presentation.terminal`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from waystation.core import (
    Answer,
    AnswerCounted,
    AnswerIgnored,
    AnswerReviewed,
    AnswerSubmitted,
    Began,
    CallLost,
    CallRef,
    CallReturned,
    CancelRequested,
    ChildReturned,
    DeadlinePassed,
    Ended,
    Event,
    ForkRefused,
    JsonObject,
    MessageJoined,
    ModelCalled,
    ModelLost,
    ModelReplied,
    ModelReply,
    ModelReplyRef,
    NoticeDue,
    Notified,
    PendingCall,
    Refused,
    ScopesTold,
)
from waystation.history import Attempts
from waystation.presentation import terminal
from waystation.presentation.call_history import answered, decision, ignored, submitted
from waystation.replay.comparison import (
    ABSENT,
    Changes,
    ModelRerun,
    MomentDifference,
    Pair,
    PromptDifference,
    RecordingDifference,
    Rerun,
)
from waystation.replay.displayable import Displayable
from waystation.replay.prompt import Prompt
from waystation.replay.recording import Moment, Recording

if TYPE_CHECKING:
    from waystation.presentation.cursor import Walk

_BOLD, _DIM = "bold", "dim"
_GONE, _CHANGED, _NEW = "red", "yellow", "green"
_BAD = "red"
MAX_EVENTS = 200
"""How many events are shown of a recording, or side by side with those that are the same in another one."""
CONTEXT = 2
"""So many events that are the same are shown around those that differ, when there are too many."""
_STYLES = {"-": _GONE, "~": _CHANGED, "+": _NEW, "@": _DIM}
"""Of what is preceded by such a sign."""
AROUND = 2
"""How many events are shown before and after the present one."""
MAX_STATE = 30
"""Keys of the state that are shown; those that changed come first."""


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
    changes = changes or Changes({}, {}, {})
    for key, value in held.items():
        text = terminal.short_json(value)
        if key in changes.changed:
            was = f"   was {terminal.short_json(changes.changed[key][0])}"
            _add_change(table, "~", key, Text.assemble((text, _CHANGED), (was, _DIM)))
        else:
            _add_change(table, "+" if key in changes.added else "", key, text)
    for key, value in changes.removed.items():
        _add_change(table, "-", key, terminal.short_json(value))
    return Group(Text("state", _BOLD), table if table.row_count else Text("  empty", _DIM))


def changes(found: Changes) -> Table:
    """Return only what differs."""
    table = _keys()
    for key, value in found.added.items():
        _add_change(table, "+", key, terminal.short_json(value))
    for key, (before, after) in found.changed.items():
        text = Text.assemble((terminal.short_json(before), _GONE), " → ", (terminal.short_json(after), _NEW))
        _add_change(table, "~", key, text)
    for key, value in found.removed.items():
        _add_change(table, "-", key, terminal.short_json(value))
    return table


def _add_change(table: Table, sign: str, key: str, value: str | Text) -> None:
    style = _STYLES.get(sign, "")
    shown = value if isinstance(value, Text) else Text(value, style)
    table.add_row(Text(sign, style), Text(terminal.safe(key), style), shown)


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
    ended = _outcome(call, at)
    return text.append(f"; {ended}" if ended else "", _DIM)


def _outcome(call: PendingCall, at: Moment) -> str:
    """Return what became of a wait after the moment."""
    found = at.recording.log.state.calls.get(call.function_call_id)
    if found is None or found.waiting:
        return (
            "and still waits where the recording ends" if found and at.recording.log.state.outcome.ended is None else ""
        )
    if found.answer and found.answered_at is not None:
        return f"later {decision(found)}, {terminal.span(found.answered_at - call.requested_at)} after it began"
    return decision(found)


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
        lines = [Text(terminal.safe(line), _STYLES.get(line[:1], "")) for line in shown.instruction]
        parts.append(_section("instruction", *lines))
    if shown.tools:
        parts.append(_section("tools", changes(shown.tools)))
    if shown.contents:
        lines = [Text.assemble((f"{sign} ", _STYLES[sign]), content(each)) for sign, each in shown.contents]
        parts.append(_section("contents", *lines))
    if not shown:
        parts.append(Text("  the same", _DIM))
    return Group(*parts)


def recording_difference(shown: RecordingDifference, *, context: int | None = None) -> RenderableType:
    """Return the events of two recordings side by side; with `context`, only so many same ones around others."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=True)
    for each in (shown.left, shown.right):
        table.add_column("#", justify="right", style=_DIM, no_wrap=True)
        table.add_column(terminal.safe(each.source), ratio=1, overflow="fold")
    for near, pairs in itertools.groupby(shown.pairs, key=_is_near(shown.pairs, context)):
        if not near:
            table.add_row("", Text(f"… {len(list(pairs))} the same", _DIM), "", "")
            continue
        for pair in pairs:
            style = _DIM if pair.same else ("bold reverse" if pair is shown.first else "")
            left, right = _side(shown.left, pair.left, _GONE, style), _side(shown.right, pair.right, _NEW, style)
            table.add_row(*left, *right)
    if shown.first is None:
        return Group(table, Text("The same happened in both.", "bold green"))
    left, right = (f"event {number}" if number else "nothing" for number in (shown.first.left, shown.first.right))
    first = Text.assemble(("First difference: ", "bold red"), f"{left} on the left, {right} on the right.")
    state_there: list[RenderableType] = [Text("state there", _BOLD), changes(shown.state)] if shown.state else []
    return Group(table, first, *state_there)


def _is_near(pairs: Sequence[Pair], context: int | None) -> Callable[[Pair], bool]:
    """Return whether a pair is at most `context` pairs from one that differs; without it all are."""
    if context is None:
        return lambda _: True
    differing = [index for index, pair in enumerate(pairs) if not pair.same]
    near = {id(pair) for index in differing for pair in pairs[max(index - context, 0) : index + context + 1]}
    return lambda pair: id(pair) in near


def _side(of: Recording, number: int | None, colour: str, style: str) -> Sequence[Any]:
    if number is None:
        return "", Text("—", _DIM)
    event = of.moment(number).event
    assert event
    text = said(event)
    if style == _DIM:
        return str(number), Text(text.plain, _DIM)
    return Text(str(number), style), Text(text.plain, f"{colour} {'bold' if style else ''}".strip())


def stop(walk: "Walk") -> RenderableType:
    """Return the present event among its neighbours, what was done there, the state, and what waits."""
    moment, changes = walk.moment, walk.changes
    parts: list[RenderableType] = [title(walk), _neighbours(walk), Text("")]
    if facts := list(happened(moment, walk.efforts)):
        parts += [_told(facts), Text("")]
    held = moment.state
    first = {key: held[key] for key in (*changes.added, *changes.changed)}
    rest = {key: value for key, value in held.items() if key not in first}
    kept = dict(list({**first, **rest}.items())[:MAX_STATE])
    parts.append(state(kept, changes))
    if len(held) > len(kept):
        parts.append(Text(f"  … and {len(held) - len(kept)} more keys; `state` shows all", _DIM))
    for call in moment.pending:
        parts += [Text(""), wait(call, moment)]
    if called := walk.calls():
        parts += [Text(""), Text(f"i goes into the agent that {', '.join(called)} called", _DIM)]
    return Group(*parts)


def title(walk: "Walk") -> RenderableType:
    """Return where one is."""
    moment, last = walk.moment, walk.recording.course[-1].events
    name = f"event {moment.number} of {last}" if walk.made_event else f"after event {moment.number} of {last}"
    if not moment.entries:
        name = f"before event {moment.number + 1} of {last}"
    before = walk.came_from
    passed = f"  +{terminal.span(moment.time - before.time)}" if before and before.entries else ""
    ended = walk.recording.log.state.outcome.ended
    over = f"  {ended}" if ended and moment.entries == len(walk.recording.log.entries) else ""
    left = Text.assemble((name, "bold"), f"  {terminal.clock(moment.time)}{passed}", (over, "bold"))
    where = Text(terminal.safe(walk.recording.id), "cyan")
    return Group(Text.assemble(where, "  ", left), Rule(style=_DIM))


def _neighbours(walk: "Walk") -> Table:
    recording, number = walk.recording, walk.moment.number
    first, last = recording.events_before + 1, recording.course[-1].events
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for each in range(max(number - AROUND, first), min(number + AROUND, last) + 1):
        event = recording.moment(each).event
        assert event
        if each == number and walk.made_event:
            table.add_row(Text(f"▶ {each}", "bold"), said(event))
            continue
        text = said(event).plain.split("\n")[0]
        table.add_row(Text(str(each), _DIM), Text(text, _DIM, no_wrap=True, overflow="ellipsis"))
        if each == number:
            table.add_row(Text("▶", "bold"), Text("no event was made here", "italic"))
    return table


class Fact(NamedTuple):
    """Something to be told of a moment."""

    label: str
    text: str
    style: str = ""


def _told(facts: Iterable[Fact]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style=_DIM, min_width=8)
    table.add_column(overflow="fold")
    for fact in facts:
        table.add_row(fact.label, Text("\n".join(map(terminal.safe, fact.text.splitlines())), fact.style))
    return table


def happened(moment: Moment, efforts: Mapping[str, Attempts]) -> Iterable[Fact]:
    """Return what was applied at a moment: results with their durations and attempts, answers, deadlines."""
    entry = moment.entry
    if entry is None:
        return
    body, log = entry.body, moment.recording.log
    match body:
        case Began(given):
            yield Fact("begins", f"agent {given.agent}, for user {given.user_id}")
        case Refused(message):
            yield Fact("refused", message, _BAD)
        case ModelCalled(number, turn):
            yield Fact("model", f"call {number} of the model begins, for {log.state.runs[turn].agent}")
        case ModelReplied(number, reply):
            yield Fact("model", _replied(number, reply))
            yield from _effort(efforts.get(str(ModelReplyRef(number))), None)
        case ModelLost(number, failure):
            yield Fact("model", f"call {number} gave no reply: {terminal.failure(failure)}", _BAD)
            yield from _effort(efforts.get(str(ModelReplyRef(number))), None)
        case CallReturned(outcome, run):
            yield from _call(moment, outcome.function_call_id)
            if outcome.response is not None:
                yield Fact("outcome", terminal.short_json(outcome.response, terminal.MAX_ARGUMENT))
            if outcome.error_type:
                yield Fact("error", outcome.error_type, _BAD)
            yield from _effort(efforts.get(str(CallRef(outcome.function_call_id, run))), outcome.duration_s)
        case ChildReturned(call, result):
            yield from _call(moment, call)
            yield Fact("outcome", f"the called agent {result.status}: {terminal.clipped(result.text)}")
            yield from _effort(efforts.get(call), None)
        case CallLost(call, failure, run):
            yield from _call(moment, call)
            yield Fact("lost", terminal.failure(failure), _BAD)
            yield from _effort(efforts.get(str(CallRef(call, run))), None)
        case AnswerCounted(call, answer):
            yield from _answer(answer, f"{call} is {answered(answer, _tool_of(moment, call))}")
        case AnswerSubmitted(call, answer):
            yield from _answer(answer, f"{submitted(answer)}: {call}")
        case AnswerReviewed():
            yield Fact("answer", ignored(body.refused, body.review.who) if body.refused else "it counts")
        case AnswerIgnored():
            yield Fact("ignored", ignored(body))
        case MessageJoined():
            yield Fact("message", "the user said more")
        case DeadlinePassed(call):
            yield Fact("deadline", f"nobody answered {call} in time", _BAD)
        case NoticeDue(call, number):
            yield Fact("notice", f"reminder or escalation {number + 1} of {call} is due")
        case Notified(call, occasion):
            told = ", ".join(body.report.delivered) or "nobody"
            yield Fact("notice", f"{occasion} of {call}: {told} told")
        case ScopesTold(last):
            yield Fact("state", f"`user:` and `app:` state was told of the events up to {last}")
        case ForkRefused(failure):
            yield Fact("fork", f"what it was to take over is not to be had: {failure.message}", _BAD)
        case CancelRequested():
            yield Fact("cancel", "somebody asked to cancel the invocation")
        case Ended(status):
            yield Fact("end", f"the invocation is {status}")
        case _:
            assert_never(body)


def _call(moment: Moment, call_id: str) -> Iterator[Fact]:
    call = moment.recording.log.state.calls.get(call_id)
    if call is None:
        yield Fact("call", call_id)
        return
    yield Fact("tool", f"{call.name} [{call.id}], called by {call.agent}")
    yield Fact("input", terminal.short_json(call.args, terminal.MAX_ARGUMENT))


def _replied(number: int, reply: ModelReply) -> str:
    words = [f"call {number}"]
    if reply.model_version:
        words.append(reply.model_version)
    if reply.usage and reply.usage.total:
        words.append(f"{reply.usage.prompt_tokens:,} + {reply.usage.output_tokens:,} tokens")
    if reply.wrap_up:
        words.append(f"told to wrap up: {reply.wrap_up}")
    words.append(f"took {terminal.span(reply.duration_s)}")
    return ", ".join(words)


def _effort(effort: Attempts | None, ran_s: float | None) -> Iterator[Fact]:
    """Tell how long a step took and how often it was tried."""
    words = [f"ran {terminal.span(ran_s)}"] if ran_s is not None else []
    if effort and effort.lasted_s is not None:
        words.append(f"{terminal.span(effort.lasted_s)} from when it was due")
    if effort:
        words.append(f"attempt {effort.count or 1}")
    if words:
        yield Fact("effort", ", ".join(words))
    if effort and effort.failure_before:
        yield Fact("before", f"the attempt before failed: {terminal.failure(effort.failure_before)}", _BAD)


def _tool_of(moment: Moment, call_id: str) -> str:
    call = moment.recording.log.state.calls.get(call_id)
    return call.name if call else call_id


def _answer(answer: Answer, text: str) -> Iterator[Fact]:
    yield Fact("answer", text)
    if answer.response is not None:
        yield Fact("response", terminal.short_json(answer.response, terminal.MAX_ARGUMENT))


def rerun(result: Rerun) -> RenderableType:
    """Return what was edited, and a table with both sides; what differs stands out."""
    if not isinstance(result, ModelRerun) or not result.edited:
        return _comparison(result)
    edited = Text("edited  ", style="bold").append(", ".join(terminal.safe(each.place) for each in result.edited))
    return Group(edited, _comparison(result))


def _comparison(result: Rerun) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    table.add_column("", style="dim", overflow="fold")
    table.add_column("recorded", overflow="fold")
    table.add_column("now", overflow="fold")
    recorded, now = result.sides()
    differences = result.differences
    for name in dict.fromkeys([*recorded, *now]):
        found = [each for each in differences if _top(each.place) == name]
        if not found:
            table.add_row(name, _value(recorded[name]), Text("the same", style="dim"))
        for each in found:
            table.add_row(terminal.safe(each.place), _value(each.recorded, "red"), _value(each.now, "green"))
    durations = [f"{taken:.3f} s" if taken is not None else "" for taken in result.durations()]
    table.add_row("duration", *durations)
    verdict = Text("as recorded", style="bold green") if result.same else Text("differs", style="bold yellow")
    told = Text.assemble(verdict, f"  {terminal.safe(result.what)}, run again on this machine")
    return Group(told, table, *(Text(terminal.safe(remark), style="dim") for remark in result.remarks))


def _top(place: str) -> str:
    return place.split(".", 1)[0].split("[", 1)[0]


def _value(value: Any, style: str = "") -> Text:
    if value is ABSENT:
        return Text("nothing", style="dim")
    if isinstance(value, str):
        return Text("\n".join(map(terminal.safe, terminal.clipped(value).splitlines())) or '""', style=style)
    return Text(terminal.short_json(value), style=style)


def render(value: Displayable) -> RenderableType:
    """Return what rich prints of `value`."""
    for kind, view in _VIEWS.items():
        if isinstance(value, kind):
            return view(value)
    raise TypeError(f"{type(value).__name__} has no view.")


def _short_difference(shown: RecordingDifference) -> RenderableType:
    return recording_difference(shown, context=CONTEXT if len(shown.pairs) > MAX_EVENTS else None)


_VIEWS: dict[type, Callable[[Any], RenderableType]] = {
    Recording: recording,
    Moment: moment,
    Prompt: prompt,
    MomentDifference: moment_difference,
    PromptDifference: prompt_difference,
    RecordingDifference: _short_difference,
    Rerun: rerun,
}
