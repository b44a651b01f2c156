"""The report on a recording: what an invocation did, what it cost, what people and models said. As JSON and as HTML."""

import hashlib
import html
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from waystation.audit.account import account
from waystation.core import (
    WORKFLOW,
    AgentRun,
    Began,
    CallState,
    ChildOutcome,
    Entry,
    Event,
    Failure,
    ForeignHistory,
    JsonObject,
    Log,
    ModelCalled,
    ModelLost,
    ModelReplied,
    ModelReply,
    SessionState,
    call_id_of,
    encode,
    is_working,
    text_of,
    user_content,
)
from waystation.core.conversation import prompt
from waystation.history import Attempts, attempts_of, failed_workflow_tasks, outcome_of, seconds_of
from waystation.presentation import terminal, timeline
from waystation.replay.recording import Recording

MAX_PROMPTS, MAX_LOOKED_AT = 300, 600_000
"""Prompts that are rebuilt, of the latest calls, and events that are looked at for them: each takes all events."""


def report(recording: Recording, *, now: float | None = None) -> "Report":
    """Return the report on an invocation, with those on the agents that it called.

    Args:
        recording: What was recorded of it.
        now: Up to when whatever goes on is told, in seconds since 1970; by default the present.

    Raises:
        ForeignHistory: It is a session, or keeps the state of a user or an app.
    """
    if recording.kind != WORKFLOW:
        raise ForeignHistory(
            f"{recording.source!r} is a history of {recording.kind!r}, which has no agent's work in it. A report is "
            "made of an invocation; `waystation sessions` lists a session's."
        )
    latest = seconds_of(recording.histories[-1].events[-1])
    return Report(recording, max(latest, time.time() if now is None else now))


@dataclass(frozen=True)
class Report:
    """What an invocation did, what it cost, and what people and models said."""

    recording: Recording
    now: float
    """Up to when whatever goes on is told."""

    @cached_property
    def summary(self) -> "RunSummary":
        """Its events and its model calls."""
        return RunSummary(self.recording)

    @cached_property
    def called(self) -> Mapping[str, "Report"]:
        """Those on the agents that it called, by the ids of the calls."""
        return {id: Report(each, self.now) for id, each in self.recording.called.items()}

    @cached_property
    def attempts(self) -> list[Attempts]:
        """The attempts at its activities."""
        return attempts_of(self.recording.histories)

    @cached_property
    def spans(self) -> list[timeline.Span]:
        """What took a while."""
        counts = {each.activity: each.count for each in self.attempts}
        return timeline.spans(self.recording.log, counts, self.now, self.recording.after(0))

    def rows(self, key: str = "", depth: int = 0) -> Iterator[timeline.Span]:
        """Yield what took a while, with that of each called agent after the call.

        `key` is the prefix of the page's anchors for this invocation.
        """
        for span in self.spans:
            yield replace(span, depth=depth, href=f"#{key}{span.activity}" if span.kind == "model" else "")
            call = call_id_of(span.activity)
            if span.kind == "agent" and (called := self.called.get(call)):
                yield from called.rows(f"{key}{call}-", depth + 1)

    @property
    def outcome(self) -> ChildOutcome | None:
        """What became of it; None while it goes on."""
        return outcome_of(self.recording.histories[-1].events[-1])

    @property
    def result(self) -> JsonObject:
        """What it returned; empty while it goes on, and when it failed."""
        return (self.outcome and self.outcome.result) or {}

    @property
    def status(self) -> str:
        """How it stands, in a word: one of the endings, `stopped`, `waiting` or `running`."""
        log = self.recording.log
        if self.result:
            return str(self.result.get("status", "completed"))
        if log.state.outcome.ended:
            return log.state.outcome.ended
        return "waiting" if log.state.waiting() and not is_working(log.state) else "running"

    @property
    def reason(self) -> str:
        """Why it stopped or failed."""
        if self.outcome and self.outcome.failure:
            return terminal.failure(self.outcome.failure)
        return str(self.result.get("reason") or "")

    @property
    def began(self) -> float:
        """When it was started."""
        return seconds_of(self.recording.histories[0].events[0])

    @property
    def ended(self) -> float | None:
        """When it was over."""
        ended = self.recording.log.state.outcome.ended
        return seconds_of(self.recording.histories[-1].events[-1]) if ended else None

    @property
    def duration_s(self) -> float:
        """How long it took, or has taken."""
        return (self.ended or self.now) - self.began

    @property
    def waited_s(self) -> float:
        """Seconds in which it waited for people, and nothing else went on."""
        return _length(self.spans) - _length(span for span in self.spans if span.kind != "wait")

    @property
    def asked(self) -> list[CallState]:
        """The calls of which people were, or are, asked."""
        return [call for call in self.recording.log.state.calls.values() if call.requested_at is not None]

    @property
    def failed_tasks(self) -> list[tuple[int, str]]:
        """The workflow tasks that failed."""
        return failed_workflow_tasks(self.recording.histories)

    @property
    def message(self) -> str:
        """What it was told."""
        given = self.recording.log.state.input
        return text_of(user_content(given.message)) if given else ""

    def to_json(self) -> JsonObject:
        """Return everything as plain JSON, whole."""
        log, recording = self.recording.log, self.recording
        given = log.state.input
        return {
            "invocation_id": recording.id,
            "source": recording.source,
            "agent": log.state.agent,
            "message": given.message if given else None,
            "user_id": given.user_id if given else None,
            "session_id": given.session_id if given else None,
            "fork": given.fork.memo() if given and given.fork else None,
            "status": self.status,
            "reason": self.reason or None,
            "result": self.outcome.result if self.outcome else None,
            "began": self.began,
            "ended": self.ended,
            "duration_s": self.duration_s,
            "working_s": log.state.used.spent.working_s,
            "waited_for_people_s": self.waited_s,
            "runs": len(recording.histories),
            "history_events": sum(len(each.events) for each in recording.histories),
            "events_before": recording.events_before,
            "usage": log.state.outcome.usage.model_dump(),
            "spent": log.state.used.spent.model_dump(),
            "budget": given.budget.model_dump(exclude_defaults=True) if given else {},
            "timeline": [span.to_json() for span in self.spans],
            "model_calls": [each.to_json() for each in self.summary.model_calls],
            "events": [each.to_json() for each in self.summary.events],
            "state": log.state.session.values,
            "people": self._people(),
            "attempts": [_attempts(each) for each in self.attempts if each.count > 1 or each.failure],
            "workflow_tasks_failed": [{"history_event": id, "message": text} for id, text in self.failed_tasks],
            "lacking": dict(recording.lacking),
            "called": {id: each.to_json() for id, each in self.called.items()},
        }

    def _people(self) -> list[JsonObject]:
        """Return what the audit tells of calls that people were asked of; nothing when earlier runs are lost."""
        asked, log = {call.id for call in self.asked}, self.recording.log
        lines = [] if log.entries_before else account(log)
        return [line for line in lines if line.get("call") in asked or line["kind"] == "ignored"]

    def html(self) -> str:
        """Return one page that needs nothing beside it: no network, no fonts, and no scripts to be read.

        Raises:
            ModuleNotFoundError: jinja2 is not installed; it comes with the extras `report` and `web`.
        """
        from waystation.presentation.html import page  # here, because it needs an extra

        return page(self)

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        return (
            f'<iframe srcdoc="{html.escape(self.html())}" sandbox="allow-scripts" title="Report" '
            'width="100%" height="720" style="border:1px solid #ccc"></iframe>'
        )


def _attempts(each: Attempts) -> JsonObject:
    failure = each.failure.model_dump(exclude_defaults=True) if each.failure else None
    about = {"activity": each.activity, "type": each.type, "history_event": each.event_id}
    return {**about, "attempts": each.count, "lost": each.lost, "last_failure": failure}


def _length(spans: Iterable[timeline.Span]) -> float:
    """Return the time covered by any of some spans."""
    total, upto = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin):
        total += max(0.0, span.end - max(span.begin, upto))
        upto = max(upto, span.end)
    return total


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """An event, and what came of it."""

    number: int
    event: Event
    changes: Sequence[JsonObject]
    """Each a `key` of the state with its value `before` and `after`; a value that was not there is left out."""
    model_call: int | None
    """Whose reply it is of."""

    def to_json(self) -> JsonObject:
        """Return the event with its number and its changes."""
        call = {"model_call": self.model_call} if self.model_call else {}
        return {"number": self.number, **call, "event": self.event.to_json(), "changes": list(self.changes)}


@dataclass(slots=True)
class ModelCall:
    """One call of a model."""

    number: int
    agent: str
    began: float
    prompt: JsonObject | None
    """What the model was shown, as far as it is rebuilt: its length, what it begins as, and the contents that follow.

    Each part of those has the number of the `event` that says the same, if there is one.
    """
    ended: float | None = None
    reply: ModelReply | None = None
    failure: Failure | None = None
    cost: float | None = None
    """In the currency of the budget's prices; None where it has none for the model."""
    defined_before: tuple[int, str] | None = None
    """An earlier call of the agent whose definition was another one: its number, and the digest."""

    @property
    def definition(self) -> str:
        """Digest of the agent's definition at that time."""
        return self.reply.definition if self.reply else ""

    def to_json(self) -> JsonObject:
        """Return what is known; what is not is left out."""
        reply = self.reply
        told: JsonObject = {
            "number": self.number,
            "agent": self.agent,
            "began": self.began,
            "ended": self.ended,
            "model": reply and (reply.model or reply.model_version),
            "attempts": reply.attempt if reply else None,
            "usage": reply.usage.model_dump(exclude_defaults=True) if reply and reply.usage else None,
            "cost": self.cost,
            "finish_reason": reply and reply.finish_reason,
            "error": reply and reply.error_code,
            "wrap_up": reply and reply.wrap_up,
            "failure": self.failure.model_dump(exclude_defaults=True) if self.failure else None,
            "definition": self.definition,
            "prompt": self.prompt
            and {**self.prompt, "then": [_without_repeated(each) for each in self.prompt["then"]]},
            "definition_changed": self.defined_before
            and {
                "since_model_call": self.defined_before[0],
                "before": self.defined_before[1],
                "after": self.definition,
            },
        }
        return {name: value for name, value in told.items() if value not in (None, "", 0)}


def _without_repeated(content: JsonObject) -> JsonObject:
    """Return a content of a prompt without the parts that an event says."""
    return {**content, "parts": [{"event": p["event"]} if "event" in p else p for p in content["parts"]]}


class RunSummary:
    """What a recording says, entry by entry: events with the changes that they made, and model calls."""

    def __init__(self, recording: Recording) -> None:
        self.events: list[NumberedEvent] = []
        self.model_calls: list[ModelCall] = []
        self._log: Log = recording.after(0)
        self._fold = SessionState(self._log.state.session.values)
        self._prompts = _Prompts()
        entries = recording.log.entries
        self._replies = {each.body.number: each.body.reply for each in entries if isinstance(each.body, ModelReplied)}
        called = [each.body.number for each in entries if isinstance(each.body, ModelCalled)]
        rebuilt = min(MAX_PROMPTS, MAX_LOOKED_AT // max(len(recording.events), 1))
        self._rebuilt = set(called[max(len(called) - rebuilt, 0) :])
        self._in_flight: dict[int, ModelCall] = {}
        self._definitions: dict[str, tuple[int, str]] = {}
        for entry in entries:
            self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        log, body, known = self._log, entry.body, len(self._log.state.events)
        log.append(entry.ref, entry.time, body)
        call: int | None = None
        match body:
            case Began(given):
                self._fold = SessionState(given.state)
            case ModelCalled():
                self._called(entry.time, body)
            case ModelReplied(number, reply):
                call = self._replied(entry.time, number, reply)
            case ModelLost(number, failure) if found := self._in_flight.pop(number, None):
                found.ended, found.failure = entry.time, failure
        for number, event in enumerate(log.state.events[known:], log.state.events_before + known + 1):
            self._prompts.know(number, event)
            own = call if event.content and event.author != "user" else None
            self.events.append(NumberedEvent(number, event, self._changes(event), own))

    def _called(self, now: float, body: ModelCalled) -> None:
        work = self._log.state.runs[body.turn]
        reply = self._replies.get(body.number)
        if not work.asks_model(work.phase_in_flight, reply):
            return
        shown = None
        if body.number in self._rebuilt:
            made = reply.compaction.event(self._log.invocation_id, work.branch) if reply and reply.compaction else None
            shown = self._prompts.of(body.number, self._log, work, made)
        call = self._in_flight[body.number] = ModelCall(body.number, work.agent, now, shown)
        self.model_calls.append(call)

    def _replied(self, now: float, number: int, reply: ModelReply) -> int | None:
        if reply.scopes:
            self._fold.underlay(reply.scopes)
        call = self._in_flight.pop(number, None)
        if call is None:
            return None
        call.ended, call.reply = now, reply
        price = self._log.state.budget.price([reply.model or "", reply.model_version or ""])
        call.cost = price.of(reply.usage) if price and reply.usage else None
        before = self._definitions.get(call.agent)
        if before and reply.definition and before[1] != reply.definition:
            call.defined_before = before
        if reply.definition:
            self._definitions[call.agent] = number, reply.definition
        return number

    def _changes(self, event: Event) -> list[JsonObject]:
        before = self._fold.values
        self._fold.apply(event.actions)
        states = {"before": before, "after": self._fold.values}
        return [
            {"key": key, **{when: state[key] for when, state in states.items() if key in state}}
            for key in dict.fromkeys((*event.actions.state_delta, *event.actions.removed_keys))
        ]


class _Prompts:
    """The prompts of one invocation, in the order in which they were made, without saying anything twice.

    A prompt mostly repeats the one before it. So of each is told how much of the earlier one of the same agent it
    begins with, and what follows; and what follows is named by the event that says it, where one does.
    """

    def __init__(self) -> None:
        self._events: dict[bytes, int] = {}
        self._last: dict[str, tuple[int, list[JsonObject]]] = {}

    def know(self, number: int, event: Event) -> None:
        """Take note of an event, to which prompts may refer."""
        for part in (event.content or {}).get("parts") or ():
            self._events[_key(part)] = number

    def of(self, number: int, log: Log, work: AgentRun, summary: Event | None) -> JsonObject:
        """Return the prompt of a model call; see `ModelCall.prompt`."""
        shown = prompt.contents(log, agent=work.agent, branch=work.branch, summary=summary)
        like, before = self._last.get(work.agent, (0, []))
        pairs = zip(before, shown, strict=False)
        same = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(before), len(shown)))
        self._last[work.agent] = number, shown
        begins = {"begins_as": {"model_call": like, "contents": same}} if like and same else {}
        return {"contents": len(shown), **begins, "then": [self._content(each) for each in shown[same:]]}

    def _content(self, content: JsonObject) -> JsonObject:
        numbers = ((part, self._events.get(_key(part))) for part in content.get("parts") or ())
        parts = [{"event": number, "part": part} if number else {"part": part} for part, number in numbers]
        return {"role": str(content.get("role") or "user"), "parts": parts}


def _key(part: JsonObject) -> bytes:
    """Return a digest of a part, without the ids of calls, which models are not shown."""
    told = {
        kind: {name: field for name, field in value.items() if name != "id"} if isinstance(value, dict) else value
        for kind, value in part.items()
    }
    return hashlib.blake2b(encode(told), digest_size=16).digest()
