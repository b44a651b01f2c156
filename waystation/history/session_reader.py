"""Build the transcript of a session from its histories."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from pydantic import ValidationError
from temporalio.api.history.v1 import HistoryEvent

from waystation.core.contract import (
    CHANGE_STATE,
    SESSION_WORKFLOW,
    WORKFLOW,
    InvocationInput,
    InvocationReport,
    InvocationResult,
    session_part,
)
from waystation.core.conversation import Transcript
from waystation.core.errors import ForeignHistory, InvalidInput
from waystation.core.payload import JsonObject, decode
from waystation.core.projection import COLLECT, entries_to_json, unpack_entries
from waystation.core.session_log import Collected, SessionInput, change_state, parse_state_change, without_carried
from waystation.history.history_events import (
    EventType,
    get_attributes,
    get_time_s,
    read_json_content,
    read_json_payloads,
)
from waystation.storage import Blobs


class SessionReader:
    """Reads the history of one run of a session into a transcript that also covers all earlier runs."""

    def __init__(self, session: str, blobs: Blobs, previous: Transcript | None = None) -> None:
        """Initialize the reader.

        If this process already has the transcript of the previous run, pass it as `previous`, so that it is not fetched
        again.
        """
        self._session, self._blobs, self._previous = session, blobs, previous
        self.transcript = Transcript(session)
        self.given: SessionInput | None = None
        self.last_event_id = 0
        self.state: JsonObject = {}
        """The state at the start of the latest invocation, plus the changes that reports have made since."""
        self.continued: str | None = None
        """The ID of the next run, or None if the session has not continued as new."""
        self._children: dict[int, int] = {}
        self._reports: set[str] = set()
        self._collecting: set[int] = set()
        self._change_ids: set[str] = set()
        """IDs of messages and changes that count already."""

    async def read(self, events: Iterable[HistoryEvent]) -> None:
        """Update the transcript from events. Events that have already been read are skipped.

        Raises:
            ForeignHistory: The events are damaged or do not belong to a session.
            StoreFailed: Part of the transcript is not in the store.
        """
        for event in events:
            if event.event_id > self.last_event_id:
                try:
                    await self._read(event)
                except (ValidationError, ValueError, KeyError):
                    raise ForeignHistory(
                        f"The history of session {self._session!r} cannot be read. It may be damaged, or recorded by a "
                        "newer version of Waystation."
                    ) from None
                self.last_event_id = event.event_id

    async def _read(self, event: HistoryEvent) -> None:
        attributes = get_attributes(event)
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                if attributes.workflow_type.name != SESSION_WORKFLOW:
                    raise ForeignHistory(
                        f"{self._session!r} is a workflow of type {attributes.workflow_type.name!r}, not a session."
                    )
                params = SessionInput.model_validate(decode(read_json_content(attributes.input.payloads)))
                await self._begin(params if attributes.continued_execution_run_id else without_carried(params))
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                if attributes.workflow_type.name == WORKFLOW:
                    number = int(attributes.workflow_id.rpartition("/")[2])
                    self._children[event.event_id] = number
                    request = InvocationInput.model_validate(decode(read_json_content(attributes.input.payloads)))
                    request = request.from_parent(self._session, "")
                    self.transcript.start(number, get_time_s(event), request)
                    self.state = session_part(request.state)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
                result = InvocationResult.model_validate(decode(read_json_content(attributes.result.payloads)))
                if result.report:
                    self._apply_report(self._children[attributes.initiated_event_id], result.report)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                if attributes.activity_type.name == COLLECT.name:
                    self._collecting.add(event.event_id)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                if attributes.scheduled_event_id in self._collecting:
                    collected = Collected.model_validate(decode(read_json_content(attributes.result.payloads)))
                    if collected.report:
                        self._apply_report(collected.number, await self._fetch_report(collected))
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED if attributes.signal_name == CHANGE_STATE:
                self._change_state(read_json_payloads(attributes.input.payloads))
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                self.continued = attributes.new_execution_run_id

    async def _begin(self, params: SessionInput) -> None:
        self.given = params
        self.state = params.carried.state if params.carried else params.state
        self._change_ids.update(dict(params.carried.message_ids) if params.carried else ())
        stored = sum(ref.entries for ref in params.segments)
        if self._previous and len(self._previous.items) == stored + len(params.items) and stored:
            self.transcript = self._previous
            return
        for ref in params.segments:
            self.transcript.restore(decode(await self._blobs.get(ref.digest)))
        self.transcript.restore(params.items)

    def _change_state(self, arguments: Sequence[bytes] | None) -> None:
        """Apply a change, as the workflow does. Ignore it if it is invalid or a duplicate."""
        with suppress(InvalidInput):
            change = parse_state_change(arguments[0] if arguments and len(arguments) == 1 else b"")
            if change.change_id not in self._change_ids:
                self.state = change_state(self.state, change)
                self._change_ids.update([change.change_id] if change.change_id else ())

    def _apply_report(self, number: int, report: InvocationReport) -> None:
        ref = self.transcript.add_report(number, report)
        if ref is None or ref in self._reports:  # the history may contain a report twice
            return
        self._reports.add(ref)
        state = {key: value for key, value in self.state.items() if key not in report.removed_keys}
        self.state = {**state, **session_part(report.state_delta)}

    async def _fetch_report(self, collected: Collected) -> InvocationReport:
        assert collected.report is not None
        if collected.segment is None:
            return collected.report
        entries = unpack_entries(await self._blobs.get(collected.segment.digest))
        return collected.report.model_copy(update={"entries": tuple(entries_to_json(entries))})
