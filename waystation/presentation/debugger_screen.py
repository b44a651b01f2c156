"""What is seen where a walk through a recording stops, as rich renderables."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, assert_never

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from waystation.core import ids
from waystation.core.answer import Answer
from waystation.core.entry import (
    AnswerCounted,
    AnswerIgnored,
    AnswerReviewed,
    AnswerSubmitted,
    Began,
    CallLost,
    CallReturned,
    CancelRequested,
    ChildReturned,
    DeadlinePassed,
    Ended,
    Failure,
    ForkRefused,
    MessageJoined,
    ModelCalled,
    ModelLost,
    ModelReplied,
    NoticeDue,
    Notified,
    Refused,
    ScopesTold,
)
from waystation.core.model_call import ModelReply
from waystation.presentation import terminal
from waystation.presentation.recording_views import said, state, wait
from waystation.replay.recorded_activities import Effort
from waystation.replay.recording import Moment

if TYPE_CHECKING:
    from waystation.presentation.cursor import Walk

AROUND = 2
"""How many events are shown before and after the present one."""
_DIM, _BAD = "dim", "red"
MAX_STATE = 30
"""Keys of the state that are shown; those that changed come first."""


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
    ended = walk.recording.log.ended
    over = f"  {ended.status}" if ended and moment.entries == len(walk.recording.log.entries) else ""
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


def happened(moment: Moment, efforts: Mapping[str, Effort]) -> Iterable[Fact]:
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
            yield Fact("model", f"call {number} of the model begins, for {log.works[turn].agent}")
        case ModelReplied(number, reply):
            yield Fact("model", _replied(number, reply))
            yield from _effort(efforts.get(ids.model_replied(number)), None)
        case ModelLost(number, failure):
            yield Fact("model", f"call {number} gave no reply: {_failure(failure)}", _BAD)
            yield from _effort(efforts.get(ids.model_replied(number)), None)
        case CallReturned(outcome, run):
            yield from _call(moment, outcome.function_call_id)
            if outcome.response is not None:
                yield Fact("outcome", terminal.short_json(outcome.response, terminal.MAX_ARGUMENT))
            if outcome.error_type:
                yield Fact("error", outcome.error_type, _BAD)
            yield from _effort(efforts.get(ids.performance(outcome.function_call_id, run)), outcome.duration_s)
        case ChildReturned(call, result):
            yield from _call(moment, call)
            yield Fact("outcome", f"the called agent {result.status}: {terminal.clipped(result.text)}")
            yield from _effort(efforts.get(call), None)
        case CallLost(call, failure, run):
            yield from _call(moment, call)
            yield Fact("lost", _failure(failure), _BAD)
            yield from _effort(efforts.get(ids.performance(call, run)), None)
        case AnswerCounted(call, answer):
            yield from _answer(call, answer, "counts")
        case AnswerSubmitted(call, answer):
            yield from _answer(call, answer, "is looked into")
        case AnswerReviewed():
            why = f"does not count: {body.refused.message}" if body.refused else "counts"
            yield Fact("answer", f"was looked into and {why}")
        case AnswerIgnored(reason, message):
            yield Fact("ignored", f"{reason}: {message}")
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
    call = moment.recording.log.calls.get(call_id)
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


def _effort(effort: Effort | None, ran_s: float | None) -> Iterator[Fact]:
    """Tell how long a step took and how often it was tried."""
    words = [f"ran {terminal.span(ran_s)}"] if ran_s is not None else []
    if effort and effort.lasted_s is not None:
        words.append(f"{terminal.span(effort.lasted_s)} from when it was due")
    if effort:
        words.append(f"attempt {effort.attempts}")
    if words:
        yield Fact("effort", ", ".join(words))
    if effort and effort.last_failure:
        yield Fact("before", f"the attempt before failed: {effort.last_failure}", _BAD)


def _answer(call_id: str, answer: Answer, what: str) -> Iterator[Fact]:
    by = f" by {answer.by}" if answer.by else ""
    yield Fact("answer", f"{answer.action} of {call_id}{by}, which {what}")
    if answer.args is not None:
        yield Fact("input", terminal.short_json(answer.args, terminal.MAX_ARGUMENT))
    if answer.response is not None:
        yield Fact("response", terminal.short_json(answer.response, terminal.MAX_ARGUMENT))
    if answer.comment:
        yield Fact("comment", answer.comment)


def _failure(failure: Failure) -> str:
    return ": ".join(part for part in (failure.error_type or failure.kind, failure.message) if part)
