"""A long history, made without a server: an agent that calls one tool after another."""

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes, HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.common import RetryPolicy

from waystation.core.contract import (
    WORKFLOW,
    Call,
    InvocationInput,
    ModelCallInput,
    ModelReply,
    ToolCallInput,
    ToolOutcome,
    WorkflowSettings,
)
from waystation.core.payload import Recorded
from waystation.core.projection import MODEL

AGENT = "bench_agent"
TOOL = "lookup"
QUEUE = "bench"
EVENTS_OF_A_STEP = 12
_START_S = 1_795_000_000


@dataclass(slots=True)
class _HistoryWriter:
    events: list[HistoryEvent] = field(default_factory=list)

    def add(self, kind: str) -> HistoryEvent:
        """Append an event; its time is one millisecond later than the previous one."""
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
        params: Recorded,
        result: Recorded,
        options: ActivityTaskScheduledEventAttributes,
    ) -> None:
        """Append an activity that a workflow task scheduled, and its result."""
        scheduled = self.add("ACTIVITY_TASK_SCHEDULED")
        attributes = scheduled.activity_task_scheduled_event_attributes
        attributes.activity_id, attributes.activity_type.name, attributes.task_queue.name = id, kind, QUEUE
        attributes.workflow_task_completed_event_id = task
        attributes.input.CopyFrom(_payloads(params))
        attributes.MergeFrom(options)
        started = self.add("ACTIVITY_TASK_STARTED")
        started.activity_task_started_event_attributes.scheduled_event_id = scheduled.event_id
        completion = self.add("ACTIVITY_TASK_COMPLETED").activity_task_completed_event_attributes
        completion.scheduled_event_id, completion.started_event_id = scheduled.event_id, started.event_id
        completion.result.CopyFrom(_payloads(result))


def long_history(events: int, *, size: int) -> WorkflowHistory:
    """Return a history of about `events` events of an open invocation; each result has `size` bytes."""
    writer = _HistoryWriter()
    started = writer.add("WORKFLOW_EXECUTION_STARTED").workflow_execution_started_event_attributes
    started.workflow_type.name, started.task_queue.name, started.workflow_id = WORKFLOW, QUEUE, "long"
    started.original_execution_run_id = started.first_execution_run_id = "00000000-0000-4000-8000-000000000000"
    started.input.CopyFrom(_payloads(InvocationInput(agent=AGENT, message="go", cut_after=10**6)))
    started.attempt = 1
    task, at, new = writer.task(), 0, ["start"]
    for number in range(1, events // EVENTS_OF_A_STEP + 1):
        mark, id = _mark(number), f"fc-{number}"
        model_input = ModelCallInput(
            agent=AGENT,
            number=number,
            phase="enter" if number == 1 else "turn",
            check_search=True,
            at=at,
            new=tuple(new),
        )
        part = {"functionCall": {"name": TOOL, "args": {"size": size}, "id": id}}
        reply = ModelReply(
            content={"role": "model", "parts": [part]}, calls=(Call(id=id),), finish_reason="STOP", mark=mark
        )
        writer.activity(task, MODEL.name, f"m{number}", model_input, reply, _MODEL)
        task = writer.task()
        at += len(new)
        new = [f">{number}", f"m{number}.{mark}"]
        params = ToolCallInput(function_call_id=id, args={"size": size}, at=at, new=tuple(new))
        outcome = ToolOutcome(function_call_id=id, response={"result": "r" * size}, mark=mark)
        writer.activity(task, f"{AGENT}.{TOOL}", id, params, outcome, _CALL)
        task = writer.task()
        at += len(new)
        new = [f"{id}.{mark}"]
    # The last workflow task is in flight: its commands are not recorded yet.
    return WorkflowHistory("long", writer.events[:-1])


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
