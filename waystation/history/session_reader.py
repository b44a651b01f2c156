"""Read a session's history into its transcript."""

from collections.abc import Iterable

from pydantic import ValidationError
from temporalio.api.history.v1 import HistoryEvent

from waystation.core import (
    COLLECT,
    SESSION_WORKFLOW,
    WORKFLOW,
    Collected,
    ForeignHistory,
    InvocationInput,
    InvocationResult,
    JsonObject,
    Report,
    SessionInput,
    Transcript,
    as_started,
    decode,
    entries_to_json,
    lasting,
    unpack_entries,
)
from waystation.history.history_events import EventType, attributes_of, read_content, seconds_of
from waystation.storage import Blobs


class SessionReader:
    """One run of a session, as far as its history was read, and with it the transcript of all runs before."""

    def __init__(self, session: str, blobs: Blobs, previous: Transcript | None = None) -> None:
        """`previous` is the transcript of an earlier run, if this process has it: it need not be fetched again."""
        self._session, self._blobs, self._previous = session, blobs, previous
        self.transcript = Transcript(session)
        self.given: SessionInput | None = None
        self.last_event_id = 0
        self.state: JsonObject = {}
        """The state with which the latest invocation began, and what was reported since."""
        self.continued: str | None = None
        """The run that goes on, when this one does not."""
        self._children: dict[int, int] = {}
        self._collecting: set[int] = set()

    async def read(self, events: Iterable[HistoryEvent]) -> None:
        """Take events; those that were read before are passed over.

        Raises:
            ForeignHistory: They are not a session's, or damaged.
            StoreFailed: What they left in the store is not there.
        """
        for event in events:
            if event.event_id > self.last_event_id:
                try:
                    await self._read(event)
                except (ValidationError, ValueError, KeyError):
                    raise ForeignHistory(f"The history of session {self._session!r} cannot be read.") from None
                self.last_event_id = event.event_id

    async def _read(self, event: HistoryEvent) -> None:
        attributes = attributes_of(event)
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                if attributes.workflow_type.name != SESSION_WORKFLOW:
                    raise ForeignHistory(f"{self._session!r} is a {attributes.workflow_type.name!r}, not a session.")
                given = SessionInput.model_validate(decode(read_content(attributes.input.payloads)))
                await self._begin(given if attributes.continued_execution_run_id else as_started(given))
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                if attributes.workflow_type.name == WORKFLOW:
                    number = int(attributes.workflow_id.rpartition("/")[2])
                    self._children[event.event_id] = number
                    asked = InvocationInput.model_validate(decode(read_content(attributes.input.payloads)))
                    self.transcript.start(number, seconds_of(event), asked)
                    self.state = lasting(asked.state)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
                result = InvocationResult.model_validate(decode(read_content(attributes.result.payloads)))
                if result.report:
                    self._tell(self._children[attributes.initiated_event_id], result.report)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                if attributes.activity_type.name == COLLECT.name:
                    self._collecting.add(event.event_id)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                if attributes.scheduled_event_id in self._collecting:
                    collected = Collected.model_validate(decode(read_content(attributes.result.payloads)))
                    if collected.report:
                        self._tell(collected.number, await self._whole(collected))
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                self.continued = attributes.new_execution_run_id

    async def _begin(self, given: SessionInput) -> None:
        self.given = given
        self.state = given.carried.state if given.carried else given.state
        kept = sum(ref.entries for ref in given.segments)
        if self._previous and len(self._previous.items) == kept + len(given.items) and kept:
            self.transcript = self._previous
            return
        for ref in given.segments:
            self.transcript.restore(decode(await self._blobs.get(ref.digest)))
        self.transcript.restore(given.items)

    def _tell(self, number: int, report: Report) -> None:
        if self.transcript.tell(number, report) is None:
            return
        left = {key: value for key, value in self.state.items() if key not in report.removed_keys}
        self.state = {**left, **lasting(report.state_delta)}

    async def _whole(self, collected: Collected) -> Report:
        assert collected.report is not None
        if collected.segment is None:
            return collected.report
        entries = unpack_entries(await self._blobs.get(collected.segment.digest))
        return collected.report.model_copy(update={"entries": tuple(entries_to_json(entries))})
