"""The report about an invocation, as JSON or HTML: its events, model calls, answers, timeline and cost."""

import hashlib
import html
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from waystation.approvers.audit.account import create_account
from waystation.core.contract import DEFAULT_USER, WORKFLOW, Event, EventActions, ModelReply, text_of, user_content
from waystation.core.conversation import prompt
from waystation.core.errors import ForeignHistory
from waystation.core.log import (
    AgentRun,
    CallState,
    Entry,
    Failure,
    Log,
    ModelCalled,
    ModelLost,
    ModelReplied,
    call_id_of,
    is_working,
)
from waystation.core.payload import JsonObject, encode
from waystation.core.projection import ChildOutcome
from waystation.history import ActivityAttempts, collect_attempts, find_failed_workflow_tasks, get_time_s, read_outcome
from waystation.presentation import terminal, text_safety, timeline, words
from waystation.replay.recording import Moment, Recording

MAX_PROMPTS, MAX_EVENTS_READ = 300, 600_000
"""Maximum number of prompts to rebuild, and of events to read in total while doing so.

Only the prompts of the latest model calls are rebuilt, because rebuilding each prompt reads all events.
"""


FIRST, LAST = 100, 500
"""How many events to show from the beginning and the end of a long invocation. For called agents, a fifth of each."""
GROUP = 100
"""Maximum number of events in a group. Longer lists are split into groups."""
MODELS = 300
CHANGES = 200
"""Maximum number of model calls (`MODELS`) and state changes (`CHANGES`) to show. The latest ones are shown."""
CALLED = 30
"""Maximum number of called agents, at any depth, to show in full."""


def report(recording: Recording, *, now: float | None = None) -> "Report":
    """Return the report about an invocation and the agents that it called.

    Args:
        recording: The recording of the invocation.
        now: If the invocation is open, the time when the report ends, in seconds since 1970. Defaults to the current
            time. Ignored if it is before the last history event.

    Raises:
        ForeignHistory: The recording is the history of a session, or of `user:` or `app:` state.
    """
    if recording.kind != WORKFLOW:
        raise ForeignHistory(
            f"{recording.source!r} is a history of {recording.kind!r}. A report needs the history of an invocation. "
            "The invocations of a session have the session's workflow ID followed by /1, /2 and so on."
        )
    latest = get_time_s(recording.histories[-1].events[-1])
    return Report(recording, max(latest, time.time() if now is None else now))


@dataclass(frozen=True)
class Report:
    """A report about an invocation: its events, model calls, answers, timeline and cost."""

    recording: Recording
    now: float
    """The time when the report ends if the invocation is open, in seconds since 1970."""

    @cached_property
    def summary(self) -> "RunSummary":
        """The events and model calls of the invocation."""
        return RunSummary(self.recording)

    @cached_property
    def called(self) -> Mapping[str, "Report"]:
        """The reports about called agents, by call ID."""
        return {id: Report(called, self.now) for id, called in self.recording.called.items()}

    @cached_property
    def attempts(self) -> list[ActivityAttempts]:
        """The attempts of each activity."""
        return collect_attempts(self.recording.histories)

    @cached_property
    def spans(self) -> list[timeline.TimelineSpan]:
        """The spans of the timeline, without the spans inside called agents."""
        counts = {attempts.activity: attempts.count for attempts in self.attempts}
        return timeline.build_spans(self.recording.log, counts, self.now, self.recording.after(0))

    def rows(
        self, key: str = "", depth: int = 0, *, path_of: Callable[[str], str] | None = None
    ) -> Iterator[timeline.TimelineSpan]:
        """Yield the spans of the timeline. The spans inside a called agent follow the span of the agent's call.

        Args:
            key: Prefix of this invocation's anchors on the page.
            depth: Number of agents above this one.
            path_of: Returns the path of an invocation's page, if each has a page of its own.
        """
        for span in self.spans:
            href = f"#{key}{span.activity if span.kind == 'model' else f'e{span.event}'}"
            if path_of:
                href = f"{path_of(self.recording.id)}{f'#e{span.event}' if span.event else ''}"
            yield replace(span, depth=depth, href=href)
            call = call_id_of(span.activity)
            if span.kind == "agent" and (called := self.called.get(call)):
                yield from called.rows(f"{key}{call}-", depth + 1, path_of=path_of)

    @property
    def outcome(self) -> ChildOutcome | None:
        """The outcome of the invocation, or None while it is open."""
        return read_outcome(self.recording.histories[-1].events[-1])

    @property
    def result(self) -> JsonObject:
        """The result of the invocation. Empty if the invocation is open or has failed."""
        return (self.outcome and self.outcome.result) or {}

    @property
    def status(self) -> str:
        """The status in one word, such as `completed` or `failed`. An open invocation is `waiting` or `running`."""
        log = self.recording.log
        if self.result:
            return str(self.result.get("status", "completed"))
        if log.state.outcome.ended:
            return log.state.outcome.ended
        return "waiting" if log.state.waiting() and not is_working(log.state) else "running"

    @property
    def reason(self) -> str:
        """Why the invocation stopped or failed. Empty if it did neither."""
        if self.outcome and self.outcome.failure:
            return terminal.describe_failure(self.outcome.failure)
        return str(self.result.get("reason") or "")

    @property
    def began(self) -> float:
        """When the invocation started, in seconds since 1970."""
        return get_time_s(self.recording.histories[0].events[0])

    @property
    def ended(self) -> float | None:
        """When the invocation ended, in seconds since 1970, or None while it is open."""
        ended = self.recording.log.state.outcome.ended
        return get_time_s(self.recording.histories[-1].events[-1]) if ended else None

    @property
    def duration_s(self) -> float:
        """The duration in seconds. For an open invocation, the duration so far."""
        return (self.ended or self.now) - self.began

    @property
    def waited_s(self) -> float:
        """How many seconds the invocation spent only waiting for people, while nothing else was running."""
        return _length(self.spans) - _length(span for span in self.spans if span.kind != "wait")

    @property
    def person_calls(self) -> list[CallState]:
        """The calls that needed (or still need) an answer from a person."""
        return [call for call in self.recording.log.state.calls.values() if call.requested_at is not None]

    @property
    def failed_tasks(self) -> list[tuple[int, str]]:
        """The history event ID and failure message of each failed workflow task."""
        return find_failed_workflow_tasks(self.recording.histories)

    @property
    def message(self) -> str:
        """The text of the message that started the invocation."""
        started = self.recording.log.state.input
        return text_of(user_content(started.message)) if started else ""

    def to_json(self) -> JsonObject:
        """Return the complete report as a JSON object."""
        log, recording = self.recording.log, self.recording
        started = log.state.input
        return {
            "invocation_id": recording.id,
            "source": recording.source,
            "agent": log.state.agent,
            "message": started.message if started else None,
            "user_id": started.user_id if started else None,
            "session_id": started.session_id if started else None,
            "tenant": started.tenant if started else None,
            "fork": started.fork.memo() if started and started.fork else None,
            "status": self.status,
            "reason": self.reason or None,
            "result": self.outcome.result if self.outcome else None,
            "began": self.began,
            "ended": self.ended,
            "duration_s": self.duration_s,
            "working_s": log.state.used.spent.working_s,
            "waited_for_people_s": self.waited_s,
            "runs": len(recording.histories),
            "history_events": sum(len(history.events) for history in recording.histories),
            "events_before": recording.events_before,
            "usage": log.state.outcome.usage.model_dump(),
            "spent": log.state.used.spent.model_dump(),
            "budget": started.budget.model_dump(exclude_defaults=True) if started else {},
            "timeline": [span.to_json() for span in self.spans],
            "model_calls": [call.to_json() for call in self.summary.model_calls],
            "events": [event.to_json() for event in self.summary.events],
            "state": log.state.session.values,
            "people": self._people(),
            "attempts": [_format_attempts(each) for each in self.attempts if each.count > 1 or each.failure],
            "workflow_tasks_failed": [{"history_event": id, "message": text} for id, text in self.failed_tasks],
            "lacking": dict(recording.lacking),
            "called": {id: called.to_json() for id, called in self.called.items()},
        }

    def _people(self) -> list[JsonObject]:
        """Return the audit lines of ignored answers and of calls that needed a person.

        Return no lines if earlier runs are lost.
        """
        person_calls, log = {call.id for call in self.person_calls}, self.recording.log
        lines = [] if log.entries_before else create_account(log)
        return [line for line in lines if line.get("call") in person_calls or line["kind"] == "ignored"]

    def html(self, *, prompts: bool = True) -> str:
        """Return the report as a self-contained HTML page. The page is complete even without JavaScript.

        Args:
            prompts: Whether the page has the prompts of model calls.

        Raises:
            ModuleNotFoundError: jinja2 is not installed. Install the extra `report` or `web`.
        """
        from waystation.presentation.html import (
            View,
            render_document,
        )  # requires jinja2, which only some extras install

        excerpt = Excerpt(self)
        view = View(excerpt.text_count, prompts=prompts)
        return render_document("report.html", report=self, excerpt=excerpt, view=view, place="", can_fork=False)

    def _repr_html_(self) -> str:
        """Return the page in an iframe, for display in notebooks."""
        return (
            f'<iframe srcdoc="{html.escape(self.html())}" sandbox="allow-scripts" title="Report" '
            'width="100%" height="720" style="border:1px solid #ccc"></iframe>'
        )


class Excerpt:
    """The part of a report that its page shows. It stays small even if the invocation and its called agents do not."""

    def __init__(self, report: Report) -> None:
        self._reports = dict(itertools.islice(_list_below(report), CALLED + 1))
        """The reports of the invocations that the page shows, by the prefix of their anchors."""

    @property
    def text_count(self) -> int:
        """The approximate number of long text blocks that the page shows."""
        summaries = [report.summary for report in self._reports.values()]
        return sum(min(len(each.events), FIRST + LAST) + 2 * min(len(each.model_calls), MODELS) for each in summaries)

    def called(self, report: Report, key: str) -> list[tuple[str, Report]]:
        """Return the reports of the called agents that the page shows, each with the prefix of its anchors."""
        return [(f"{key}{id}-", called) for id, called in report.called.items() if f"{key}{id}-" in self._reports]

    def figures(self, report: Report) -> list[tuple[str, str]]:
        """Return the key figures, as pairs of label and text."""
        state, histories, line = report.recording.log.state, report.recording.histories, text_safety.format_line
        started, fork = state.input, state.input.fork if state.input else None
        agents = sum(call.call.kind == "agent" for call in state.calls.values())
        events = sum(len(history.events) for history in histories)
        rows = [
            ("duration" if report.ended else "so far", text_safety.format_duration(report.duration_s)),
            *words.list_spending(state),
            ("waited for people", text_safety.format_duration(report.waited_s) if report.person_calls else ""),
            ("called agents", f"{agents:,}" if agents else ""),
            ("user", line(started.user_id) if started and started.user_id != DEFAULT_USER else ""),
            ("session", line(started.session_id or "") if started else ""),
            ("tenant", (started.tenant or "") if started else ""),
            ("history", f"{events:,} events in {len(histories)} run{'s' * (len(histories) > 1)}"),
            ("forked from", f"{line(fork.invocation_id)}, event {fork.event}" if fork else ""),
        ]
        return [(label, text) for label, text in rows if text]

    def troubles(self, report: Report) -> list[tuple[str, str, str, int | None]]:
        """Return the last errors and retries: what failed, how, why, and the history event ID if known."""
        line = text_safety.format_line
        rows: list[tuple[str, str, str, int | None]] = []
        for attempts in report.attempts:
            if attempts.count > 1 or attempts.failure:
                end = "all of them failed" if attempts.lost else "the last succeeded"
                how = f"{attempts.count} attempts, {end}" if attempts.count > 1 else "failed"
                why = terminal.describe_failure(attempts.failure) if attempts.failure else ""
                rows.append((f"{line(attempts.type)} ({line(attempts.activity)})", how, why, attempts.event_id))
        for call in report.recording.log.state.calls.values():
            if call.outcome and call.outcome.error_type:
                how = f"{line(call.outcome.error_type)}; reported to the model"
                why = str((call.outcome.response or {}).get("error") or "")
                rows.append((f"{line(call.agent)}: {line(call.name)} ({line(call.id)})", how, why, None))
        rows += [("a workflow task", "failed", text, number) for number, text in report.failed_tasks]
        return rows[-LAST:]

    def models(self, report: Report) -> "list[ModelCall]":
        """Return the latest model calls, at most `MODELS`."""
        return report.summary.model_calls[-MODELS:]

    def changes(self, report: Report) -> list[tuple[int, JsonObject]]:
        """Return the latest state changes, at most `CHANGES`, each with the number of its event."""
        return [(event.number, change) for event in report.summary.events for change in event.changes][-CHANGES:]

    def events(self, report: Report, key: str) -> JsonObject:
        """Return the events to show, in groups.

        `omitted` is the number of events left out, and `omitted_after` is the number of the event before them.
        """
        events = report.summary.events
        first, last = (FIRST // 5, LAST // 5) if key else (FIRST, LAST)
        omitted = max(0, len(events) - first - last)
        shown = [*events[:first], *events[first + omitted :]] if omitted else events
        after = events[first - 1].number if omitted else 0
        groups = [shown[at : at + GROUP] for at in range(0, len(shown), GROUP)]
        return {"omitted": omitted, "omitted_after": after, "groups": groups}

    def timeline(self, report: Report, key: str) -> JsonObject | None:
        """Return the drawing of the timeline, or None if there are no spans."""
        return timeline.draw(list(report.rows(key)), report.recording.events, key)


def _list_below(report: Report, key: str = "") -> Iterator[tuple[str, Report]]:
    """Yield a report and the reports of all agents called below it, each with the prefix of its anchors."""
    yield key, report
    for id, called in report.called.items():
        yield from _list_below(called, f"{key}{id}-")


def _format_attempts(attempts: ActivityAttempts) -> JsonObject:
    return {
        "activity": attempts.activity,
        "type": attempts.type,
        "history_event": attempts.event_id,
        "attempts": attempts.count,
        "lost": attempts.lost,
        "last_failure": attempts.failure.model_dump(exclude_defaults=True) if attempts.failure else None,
    }


def _length(spans: Iterable[timeline.TimelineSpan]) -> float:
    """Return the total time, in seconds, during which at least one of the spans was open."""
    total, upto = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin):
        total += max(0.0, span.end - max(span.begin, upto))
        upto = max(upto, span.end)
    return total


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """An event with its number and the state changes it made."""

    number: int
    event: Event
    changes: Sequence[JsonObject]
    """The state changes. Each has a state `key` and the values `before` and `after`, if there are any."""
    model_call: int | None
    """The number of the model call that produced the event, or None if no model call did."""

    def to_json(self) -> JsonObject:
        """Return the numbered event as a JSON object."""
        call = {"model_call": self.model_call} if self.model_call else {}
        return {"number": self.number, **call, "event": self.event.to_json(), "changes": list(self.changes)}


def number_events(events: Iterable[Event]) -> list[NumberedEvent]:
    """Number the events of a log, whose state changes and model calls are unknown."""
    return [NumberedEvent((event.index or 0) + 1, event, (), None) for event in events]


@dataclass(slots=True)
class ModelCall:
    """A model call with its prompt, reply and cost."""

    number: int
    agent: str
    began: float
    prompt: JsonObject | None
    """The prompt's contents, or None if the prompt was not rebuilt.

    `contents` is their number, `begins_as` says how many of the first ones repeat which earlier model call, and `then`
    has the rest. A part that repeats an event is listed with the number of that `event`.
    """
    ended: float | None = None
    reply: ModelReply | None = None
    failure: Failure | None = None
    cost: float | None = None
    """The cost in the currency of the budget's prices, or None if the model has no price."""
    defined_before: tuple[int, str] | None = None
    """The number and definition of the agent's previous model call, or None if the definition has not changed."""

    @property
    def definition(self) -> str:
        """The digest of the agent's definition during the call."""
        return self.reply.definition if self.reply else ""

    @property
    def tokens(self) -> int:
        """The number of tokens that the call used."""
        return self.reply.usage.total if self.reply and self.reply.usage else 0

    @property
    def problem(self) -> str:
        """Why the call failed, or an empty string if it did not fail."""
        if self.failure:
            return terminal.describe_failure(self.failure)
        return ": ".join(filter(None, (self.reply.error_code, self.reply.error_message))) if self.reply else ""

    def to_json(self) -> JsonObject:
        """Return the call as a JSON object that omits unknown, empty and zero values."""
        reply = self.reply
        fields: JsonObject = {
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
            and {**self.prompt, "then": [_without_repeated(content) for content in self.prompt["then"]]},
            "definition_changed": self.defined_before
            and {
                "since_model_call": self.defined_before[0],
                "before": self.defined_before[1],
                "after": self.definition,
            },
        }
        return {name: value for name, value in fields.items() if value not in (None, "", 0)}


def _without_repeated(content: JsonObject) -> JsonObject:
    """Return one of a prompt's contents, with each part that repeats an event replaced by that event's number."""
    return {**content, "parts": [{"event": p["event"]} if "event" in p else p for p in content["parts"]]}


class RunSummary:
    """The events of a recording, each with its state changes, and the recording's model calls."""

    def __init__(self, recording: Recording) -> None:
        self.events: list[NumberedEvent] = []
        self.model_calls: list[ModelCall] = []
        self._recording = recording
        self._log: Log = recording.after(0)
        self._prompts = _Prompts()
        entries = recording.log.entries
        self._replies = {e.body.number: e.body.reply for e in entries if isinstance(e.body, ModelReplied)}
        called = [e.body.number for e in entries if isinstance(e.body, ModelCalled)]
        rebuilt = min(MAX_PROMPTS, MAX_EVENTS_READ // max(len(recording.events), 1))
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
            case ModelCalled():
                self._start_call(entry.time, body)
            case ModelReplied(number, reply):
                call = self._end_call(entry.time, number, reply)
            case ModelLost(number, failure) if lost := self._in_flight.pop(number, None):
                lost.ended, lost.failure = entry.time, failure
        for number, event in enumerate(log.state.events[known:], log.state.events_before + known + 1):
            self._prompts.add_event(number, event)
            own = call if event.content and event.author != "user" else None
            self.events.append(NumberedEvent(number, event, _list_changes(self._recording.moment(number)), own))

    def _start_call(self, now: float, body: ModelCalled) -> None:
        work = self._log.state.runs[body.turn]
        reply = self._replies.get(body.number)
        if not work.asks_model(work.phase_in_flight, reply):
            return
        rebuilt = None
        if body.number in self._rebuilt:
            compaction = reply.compaction if reply else None
            summary = compaction.event(self._log.invocation_id, work.branch) if compaction else None
            rebuilt = self._prompts.build(body.number, self._log, work, summary)
        call = self._in_flight[body.number] = ModelCall(body.number, work.agent, now, rebuilt)
        self.model_calls.append(call)

    def _end_call(self, now: float, number: int, reply: ModelReply) -> int | None:
        call = self._in_flight.pop(number, None)
        if call is None:
            return None
        call.ended, call.reply = now, reply
        price = self._log.state.budget.price([reply.model or "", reply.model_version or ""], reply.prices)
        call.cost = price.of(reply.usage) if price and reply.usage else None
        before = self._definitions.get(call.agent)
        if before and reply.definition and before[1] != reply.definition:
            call.defined_before = before
        if reply.definition:
            self._definitions[call.agent] = number, reply.definition
        return number


def _list_changes(moment: Moment) -> list[JsonObject]:
    """Return the state keys that the event of a moment set or removed, with their values before and after."""
    states = {"before": moment.before.state if moment.before else {}, "after": moment.state}
    actions = moment.event.actions if moment.event else EventActions()
    return [
        {"key": key, **{when: state[key] for when, state in states.items() if key in state}}
        for key in dict.fromkeys((*actions.state_delta, *actions.removed_keys))
    ]


class _Prompts:
    """Builds the prompts of one invocation, in order, without storing repetitions.

    Most of a prompt repeats the agent's previous prompt. A prompt is therefore stored as the number of contents that it
    shares with the previous prompt, and the contents that follow. Parts that repeat an event refer to that event.
    """

    def __init__(self) -> None:
        self._events: dict[bytes, int] = {}
        self._last: dict[str, tuple[int, list[JsonObject]]] = {}

    def add_event(self, number: int, event: Event) -> None:
        """Remember an event, so that later prompts can refer to it."""
        for part in (event.content or {}).get("parts") or ():
            self._events[_digest(part)] = number

    def build(self, number: int, log: Log, work: AgentRun, summary: Event | None) -> JsonObject:
        """Return the prompt of a model call, in the form that `ModelCall.prompt` describes."""
        contents = prompt.contents(log, agent=work.agent, branch=work.branch, summary=summary)
        previous, before = self._last.get(work.agent, (0, []))
        pairs = zip(before, contents, strict=False)
        shared = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(before), len(contents)))
        self._last[work.agent] = number, contents
        begins = {"begins_as": {"model_call": previous, "contents": shared}} if previous and shared else {}
        return {"contents": len(contents), **begins, "then": [self._content(content) for content in contents[shared:]]}

    def _content(self, content: JsonObject) -> JsonObject:
        numbers = ((part, self._events.get(_digest(part))) for part in content.get("parts") or ())
        parts = [{"event": number, "part": part} if number else {"part": part} for part, number in numbers]
        return {"role": str(content.get("role") or "user"), "parts": parts}


def _digest(part: JsonObject) -> bytes:
    """Return a digest of a part that ignores call IDs, because models do not see them."""
    fields = {
        kind: {name: field for name, field in value.items() if name != "id"} if isinstance(value, dict) else value
        for kind, value in part.items()
    }
    return hashlib.blake2b(encode(fields), digest_size=16).digest()
