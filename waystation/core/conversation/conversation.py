"""The conversation of an invocation: the earlier events of its session, followed by the invocation's events.

Function call IDs are unique only within one invocation, so a call is identified by its invocation ID and its call ID.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from waystation.core import ids
from waystation.core.contract import Event, InvocationInput, InvocationReport
from waystation.core.log import START, Began, CallState, Log
from waystation.core.payload import JsonObject
from waystation.core.projection import entries_from_json

CallKey: TypeAlias = tuple[str, str]
"""Invocation ID and function call ID, which together identify a call."""


class Transcript:
    """The events of a session, and the index at which each invocation starts.

    The session's history records when each invocation started and which reports had been applied by then. Workflows,
    activities and readers all build the same transcript from it.
    """

    def __init__(self, session: str) -> None:
        self.session = session
        self.events: list[Event] = []
        """The events of all invocations, in the order the session learned about them. Events are only ever appended."""
        self.logs: dict[str, Log] = {}
        """The log of each invocation, by invocation ID."""
        self.marks: dict[int, int] = {}
        """Number of events in the transcript when each invocation started, by invocation number."""
        self.items: list[JsonObject] = []
        """The transcript in its recorded form, from which `restore` can rebuild it."""
        self._reports: dict[str, InvocationReport] = {}

    def calls_of(self, invocation_id: str) -> Mapping[str, CallState]:
        """Return the calls of one invocation by function call ID. Empty if the invocation is not in the transcript."""
        log = self.logs.get(invocation_id)
        return log.state.calls if log else {}

    def restore(self, items: Iterable[JsonObject]) -> None:
        """Append the recorded items of an earlier transcript."""
        for item in items:
            if "input" in item:
                self._begin(item["n"], item["time"], InvocationInput.model_validate(item["input"]))
            else:
                self._extend(item["n"], item["since"], item["entries"])
            self.items.append(item)

    def start(self, number: int, time: float, started: InvocationInput) -> None:
        """Apply the reports that `started` names, then append the start of the invocation.

        Do nothing if the invocation has already been started.
        """
        if number in self.marks:
            return
        for ref in started.session.reports if started.session else ():
            self.apply(ref)
        # `state` and `session` are not needed here: the session holds the state, and `session` only says where to read
        # this transcript.
        recorded = started.model_copy(update={"state": {}, "session": None})
        self._begin(number, time, recorded)
        self.items.append({"n": number, "time": time, "input": recorded.model_dump(mode="json", exclude_defaults=True)})

    def add_report(self, number: int, report: InvocationReport) -> str | None:
        """Keep a report until it is applied, and return its reference. Ignore a report without entries: return None."""
        if report.entries is None:
            return None
        self._reports[ref := ids.report(number, report.since)] = report
        return ref

    def apply(self, ref: str) -> None:
        """Append those entries of a report that the transcript does not contain yet.

        Nothing is appended if the report is unknown or does not continue its invocation's log without a gap.
        """
        report = self._reports.pop(ref, None)
        if report is None or report.entries is None:
            return
        number, since = ids.parse_report(ref)
        self._extend(number, since, report.entries)
        self.items.append({"n": number, "since": since, "entries": list(report.entries)})

    def flush(self) -> None:
        """Apply the remaining reports that directly continue their logs, for readers of an unfinished session."""
        for ref in list(self._reports):
            number, since = ids.parse_report(ref)
            log = self.logs.get(ids.session_invocation(self.session, number))
            if log is not None and len(log.entries) == since:
                self.apply(ref)

    def _begin(self, number: int, time: float, started: InvocationInput) -> None:
        invocation_id = ids.session_invocation(self.session, number)
        log = self.logs[invocation_id] = Log(invocation_id)
        self.marks[number] = len(self.events)
        log.append(START, time, Began(started))
        self.events.extend(log.state.events)

    def _extend(self, number: int, since: int, entries: Sequence[JsonObject]) -> None:
        log = self.logs.get(ids.session_invocation(self.session, number))
        if log is None or len(log.entries) < since:
            return
        known = len(log.state.events)
        log.extend(entries_from_json(entries)[max(len(log.entries) - since, 0) :])
        self.events.extend(log.state.events[known:])


NO_TRANSCRIPT = Transcript("")


class Conversation:
    """The first `count` events of a transcript, followed by the events of the current invocation."""

    def __init__(self, log: Log, earlier: Transcript = NO_TRANSCRIPT, count: int = 0) -> None:
        self.log = log
        self.earlier, self.count = earlier, count

    @property
    def events(self) -> Sequence[Event]:
        """All events, oldest first."""
        return [*self.earlier.events[: self.count], *self.log.state.events] if self.count else self.log.state.events

    def call(self, key: CallKey) -> CallState | None:
        """Return a call of the current or an earlier invocation, or None if it does not exist."""
        invocation_id, function_call_id = key
        return self.calls_of(invocation_id).get(function_call_id)

    def calls_of(self, invocation_id: str) -> Mapping[str, CallState]:
        """Return the calls of the current or an earlier invocation by function call ID. Empty if it does not exist."""
        if invocation_id == self.log.invocation_id:
            return self.log.state.calls
        return self.earlier.calls_of(invocation_id)
