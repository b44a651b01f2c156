"""The report on a recording."""

import html
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from waystation.audit.account import account
from waystation.core import ids
from waystation.core.call import CallState
from waystation.core.continued import ChildOutcome
from waystation.core.errors import ForeignHistory
from waystation.core.event import text_of
from waystation.core.message import user_content
from waystation.core.payload import JsonObject
from waystation.core.wire import WORKFLOW
from waystation.history import Attempts, attempts_of, failed_workflow_tasks, outcome_of, seconds_of
from waystation.presentation import timeline
from waystation.presentation.report.run_summary import Telling, told
from waystation.presentation.timeline_drawing import Row
from waystation.replay.recording import Recording


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
    def telling(self) -> Telling:
        """Its events and its model calls."""
        return told(self.recording)

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

    def rows(self, key: str = "", depth: int = 0) -> Iterator[Row]:
        """Yield what took a while, with that of each called agent after the call.

        `key` is what the anchors of the page begin with where it tells of this invocation.
        """
        for span in self.spans:
            yield Row(span, depth, f"#{key}{span.activity}" if span.kind == "model" else "")
            call = ids.performed(span.activity)[0]
            if span.kind == "agent" and (called := self.called.get(call)):
                yield from called.rows(f"{key}{call}-", depth + 1)

    @property
    def outcome(self) -> ChildOutcome | None:
        """What became of it; None while it goes on."""
        return outcome_of(self.recording.histories[-1].events[-1])

    @property
    def status(self) -> str:
        """How it stands, in a word: one of the endings, `stopped`, `waiting` or `running`."""
        log, outcome = self.recording.log, self.outcome
        if outcome and outcome.result:
            return str(outcome.result.get("status", "completed"))
        if log.ended:
            return log.ended.status
        return "waiting" if log.waiting() and not log.busy else "running"

    @property
    def reason(self) -> str:
        """Why it stopped or failed."""
        outcome = self.outcome
        if outcome and outcome.failure:
            return ": ".join(filter(None, (outcome.failure.error_type, outcome.failure.message)))
        return str(((outcome and outcome.result) or {}).get("reason") or "")

    @property
    def began(self) -> float:
        """When it was started."""
        return seconds_of(self.recording.histories[0].events[0])

    @property
    def ended(self) -> float | None:
        """When it was over."""
        ended = self.recording.log.ended
        return seconds_of(self.recording.histories[-1].events[-1]) if ended else None

    @property
    def waited_s(self) -> float:
        """Seconds in which it waited for people, and nothing else went on."""
        waits = [(span.begin, span.end) for span in self.spans if span.kind == "wait"]
        others = [(span.begin, span.end) for span in self.spans if span.kind != "wait"]
        return _length([*waits, *others]) - _length(others)

    @property
    def asked(self) -> list[CallState]:
        """The calls of which people were, or are, asked."""
        return [call for call in self.recording.log.calls.values() if call.requested_at is not None]

    @property
    def failed_tasks(self) -> list[tuple[int, str]]:
        """The workflow tasks that failed."""
        return failed_workflow_tasks(self.recording.histories)

    @property
    def message(self) -> str:
        """What it was told."""
        given = self.recording.log.input
        return text_of(user_content(given.message)) if given else ""

    def to_json(self) -> JsonObject:
        """Return everything as plain JSON, whole."""
        log, recording = self.recording.log, self.recording
        given = log.input
        return {
            "invocation_id": recording.id,
            "source": recording.source,
            "agent": log.agent,
            "message": given.message if given else None,
            "user_id": given.user_id if given else None,
            "session_id": given.session_id if given else None,
            "fork": given.fork.memo() if given and given.fork else None,
            "status": self.status,
            "reason": self.reason or None,
            "result": self.outcome.result if self.outcome else None,
            "began": self.began,
            "ended": self.ended,
            "duration_s": (self.ended or self.now) - self.began,
            "working_s": log.spent.working_s,
            "waited_for_people_s": self.waited_s,
            "runs": len(recording.histories),
            "history_events": sum(len(each.events) for each in recording.histories),
            "events_before": recording.events_before,
            "usage": log.usage.model_dump(),
            "spent": log.spent.model_dump(),
            "budget": given.budget.model_dump(exclude_defaults=True) if given else {},
            "timeline": [_span(span) for span in self.spans],
            "model_calls": [each.to_json() for each in self.telling.models],
            "events": [each.to_json() for each in self.telling.events],
            "state": log.state,
            "people": self._people(),
            "attempts": [_attempts(each) for each in self.attempts if each.count > 1 or each.failure],
            "workflow_tasks_failed": [{"history_event": id, "message": text} for id, text in self.failed_tasks],
            "lacking": dict(recording.lacking),
            "called": {id: each.to_json() for id, each in self.called.items()},
        }

    def _people(self) -> list[JsonObject]:
        """Return what the audit tells of calls that people were asked of; nothing when earlier runs are lost."""
        if self.recording.log.entries_before:
            return []
        asked = {call.id for call in self.asked}
        lines = account(self.recording.log)
        return [line for line in lines if line.get("call") in asked or line["kind"] == "ignored"]

    def html(self) -> str:
        """Return one page that needs nothing beside it: no network, no fonts, and no scripts to be read.

        Raises:
            ModuleNotFoundError: jinja2 is not installed; it comes with the extras `report` and `web`.
        """
        from waystation.presentation.report.html_page import page  # here, because it needs an extra

        return page(self)

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        return (
            f'<iframe srcdoc="{html.escape(self.html())}" sandbox="allow-scripts" title="Report" '
            'width="100%" height="720" style="border:1px solid #ccc"></iframe>'
        )


def _span(span: timeline.Span) -> JsonObject:
    about = {"kind": span.kind, "name": span.name, "id": span.activity, "began": span.begin, "ended": span.end}
    return {**about, "seconds": span.seconds, "open": span.open, "attempts": span.attempts}


def _attempts(each: Attempts) -> JsonObject:
    failure = each.failure.model_dump(exclude_defaults=True) if each.failure else None
    about = {"activity": each.activity, "type": each.type, "history_event": each.event_id}
    return {**about, "attempts": each.count, "lost": each.lost, "last_failure": failure}


def _length(stretches: list[tuple[float, float]]) -> float:
    """Return how much time is in any of some stretches."""
    total, upto = 0.0, float("-inf")
    for begin, end in sorted(stretches):
        total += max(0.0, end - max(begin, upto))
        upto = max(upto, end)
    return total
