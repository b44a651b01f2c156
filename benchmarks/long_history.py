"""A long history, made without a server: an agent that calls one tool after another, as such histories are."""

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes, HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.common import RetryPolicy

from waystation.core import (
    MODEL,
    WORKFLOW,
    Call,
    InvocationInput,
    ModelCallInput,
    ModelReply,
    Recorded,
    ToolCallInput,
    ToolOutcome,
    WorkflowSettings,
)

AGENT = "bench_agent"
TOOL = "lookup"
QUEUE = "bench"
EVENTS_OF_A_STEP = 12
_START_S = 1_795_000_000


@dataclass(slots=True)
class _Writing:
    events: list[HistoryEvent] = field(default_factory=list)

    def add(self, kind: str) -> HistoryEvent:
        """Append an event; its time is a millisecond after the one before."""
        number = len(self.events) + 1
        event = HistoryEvent(event_id=number, event_type=EventType.Value(f"EVENT_TYPE_{kind}"))
        event.event_time.FromMilliseconds(_START_S * 1_000 + number)
        self.events.append(event)
        return event

    def task(self) -> int:
        """Append a workflow task; return the id of its last event."""
        event = self.add("WORKFLOW_TASK_SCHEDULED")
        event.workflow_task_scheduled_event_attributes.task_queue.name = QUEUE
        scheduled = event.event_id
        started = self.add("WORKFLOW_TASK_STARTED")
        started.workflow_task_started_event_attributes.scheduled_event_id = scheduled
        completed = self.add("WORKFLOW_TASK_COMPLETED")
        completed.workflow_task_completed_event_attributes.scheduled_event_id = scheduled
        completed.workflow_task_completed_event_attributes.started_event_id = started.event_id
        return completed.event_id

    def activity(
        self,
        task: int,
        kind: str,
        id: str,
        given: Recorded,
        result: Recorded,
        options: ActivityTaskScheduledEventAttributes,
    ) -> None:
        """Append an activity that a workflow task began, and its result."""
        scheduled = self.add("ACTIVITY_TASK_SCHEDULED")
        did = scheduled.activity_task_scheduled_event_attributes
        did.activity_id, did.activity_type.name, did.task_queue.name = id, kind, QUEUE
        did.workflow_task_completed_event_id = task
        did.input.CopyFrom(_payloads(given))
        did.MergeFrom(options)
        started = self.add("ACTIVITY_TASK_STARTED")
        started.activity_task_started_event_attributes.scheduled_event_id = scheduled.event_id
        done = self.add("ACTIVITY_TASK_COMPLETED").activity_task_completed_event_attributes
        done.scheduled_event_id, done.started_event_id = scheduled.event_id, started.event_id
        done.result.CopyFrom(_payloads(result))


def long_history(events: int, *, size: int) -> WorkflowHistory:
    """Return a history of about so many events of an invocation that goes on; each result has `size` bytes."""
    writing = _Writing()
    started = writing.add("WORKFLOW_EXECUTION_STARTED").workflow_execution_started_event_attributes
    started.workflow_type.name, started.task_queue.name, started.workflow_id = WORKFLOW, QUEUE, "long"
    started.original_execution_run_id = started.first_execution_run_id = "00000000-0000-4000-8000-000000000000"
    started.input.CopyFrom(_payloads(InvocationInput(agent=AGENT, message="go", cut_after=10**6)))
    started.attempt = 1
    task, at, new = writing.task(), 0, ["start"]
    for number in range(1, events // EVENTS_OF_A_STEP + 1):
        mark, id = _mark(number), f"fc-{number}"
        asked = ModelCallInput(
            agent=AGENT, root=AGENT, number=number, phase="enter" if number == 1 else "turn", at=at, new=tuple(new)
        )
        part = {"functionCall": {"name": TOOL, "args": {"size": size}, "id": id}}
        reply = ModelReply(
            content={"role": "model", "parts": [part]}, calls=(Call(id=id),), finish_reason="STOP", mark=mark
        )
        writing.activity(task, MODEL.name, f"m{number}", asked, reply, _MODEL)
        task = writing.task()
        at += len(new)
        new = [f">{number}", f"m{number}.{mark}"]
        given = ToolCallInput(function_call_id=id, args={"size": size}, root=AGENT, at=at, new=tuple(new))
        outcome = ToolOutcome(function_call_id=id, response={"result": "r" * size}, mark=mark)
        writing.activity(task, f"{AGENT}.{TOOL}", id, given, outcome, _CALL)
        task = writing.task()
        at += len(new)
        new = [f"{id}.{mark}"]
    # The last workflow task is under way: what it will ask for nobody has recorded yet.
    return WorkflowHistory("long", writing.events[:-1])


def _options(retries: RetryPolicy, **timeouts: timedelta | None) -> ActivityTaskScheduledEventAttributes:
    options = ActivityTaskScheduledEventAttributes()
    retries.apply_to_proto(options.retry_policy)
    for name, limit in timeouts.items():
        if limit is not None:
            getattr(options, f"{name}_timeout").FromTimedelta(limit)
    return options


_SETTINGS = WorkflowSettings()
_MODEL = _options(
    RetryPolicy(**vars(_SETTINGS.model.retries)),
    start_to_close=_SETTINGS.model.start_to_close,
    heartbeat=_SETTINGS.model.heartbeat,
)
_CALL = _options(
    RetryPolicy(maximum_attempts=1 + _SETTINGS.tool.lost_worker_attempts),
    start_to_close=_SETTINGS.tool.timeout + _SETTINGS.tool.grace,
    schedule_to_start=_SETTINGS.tool.schedule_to_start,
    heartbeat=_SETTINGS.tool.heartbeat,
)


def _payloads(value: Recorded) -> Payloads:
    return Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=value.encode())])


def _mark(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:6]
