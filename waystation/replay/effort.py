"""What it took to carry out the steps of a recording: how often they were tried, and how long that took."""

from collections.abc import Iterable
from dataclasses import dataclass

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from waystation.history import seconds_of


@dataclass(slots=True)
class Effort:
    """One activity, or one called agent. Times are the server's, in seconds since 1970."""

    scheduled: float
    started: float | None = None
    """When the attempt that reported began; None while none has reported."""
    ended: float | None = None
    attempts: int = 1
    last_failure: str = ""
    """Why the attempt before the last one failed."""

    @property
    def lasted_s(self) -> float | None:
        """How long it took from the moment it was scheduled."""
        return None if self.ended is None else max(self.ended - self.scheduled, 0.0)


def efforts(histories: Iterable[WorkflowHistory]) -> dict[str, Effort]:
    """Return the efforts of an invocation by the ids of activities; of called agents by those of the calls."""
    found: dict[str, Effort] = {}
    for history in histories:
        ids: dict[int, str] = {}
        for event in history.events:
            kind = event.WhichOneof("attributes") or ""
            given = getattr(event, kind, None)
            if kind == "activity_task_scheduled_event_attributes":
                ids[event.event_id] = event.activity_task_scheduled_event_attributes.activity_id
                found[ids[event.event_id]] = Effort(seconds_of(event))
            elif kind == "start_child_workflow_execution_initiated_event_attributes":
                child = event.start_child_workflow_execution_initiated_event_attributes
                ids[event.event_id] = child.workflow_id.rpartition("/")[2]
                found[ids[event.event_id]] = Effort(seconds_of(event))
            elif id := ids.get(getattr(given, "scheduled_event_id", 0) or getattr(given, "initiated_event_id", 0)):
                _note(found[id], event, kind)
    return found


def _note(effort: Effort, event: HistoryEvent, kind: str) -> None:
    if kind == "activity_task_started_event_attributes":
        started = event.activity_task_started_event_attributes
        effort.started, effort.attempts = seconds_of(event), max(started.attempt, 1)
        effort.last_failure = " ".join(started.last_failure.message.split())
    elif kind == "child_workflow_execution_started_event_attributes":
        effort.started = seconds_of(event)
    elif "cancel_requested" not in kind:
        effort.ended = seconds_of(event)
