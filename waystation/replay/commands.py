"""What workflow code asks of the server, in one form: as a history recorded it, and as the code at hand asks for it.

Left to Temporal's own replayer: markers of patches, and the cancelling of what is under way, whose trace in a history
depends on how far it had come.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from google.protobuf.duration_pb2 import Duration
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload, RetryPolicy
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes
from temporalio.bridge.proto.workflow_commands import ScheduleActivity, WorkflowCommand

from waystation.history import COMMANDS, EventType
from waystation.storage.driver import is_reference

Kind: TypeAlias = Literal[
    "activity",
    "timer",
    "child",
    "signal",
    "cancel",
    "attributes",
    "memo",
    "accept",
    "answer",
    "complete",
    "fail",
    "cancelled",
    "continue",
]
ENDS: frozenset[Kind] = frozenset({"complete", "fail", "cancelled", "continue"})
_COMPARED = COMMANDS | {
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
}
_PATCHES = "TemporalChangeVersion"
"""Search attribute by which the SDK lists the patches of a run."""


class Content(NamedTuple):
    """A payload, as far as two of them are the same."""

    encoding: bytes
    data: bytes


Contents: TypeAlias = tuple[Content, ...]


def value_of(content: Content) -> Any:
    """Return what a payload says, as far as it can be read."""
    if content.encoding == b"binary/null":
        return None
    try:
        return from_json(content.data)
    except ValueError:
        return content.data


@dataclass(frozen=True, slots=True)
class Command:
    """One thing that is asked of the server."""

    kind: Kind
    name: str = ""
    """The type of an activity or a child, or the name of a signal."""
    id: str = ""
    """What tells it apart from others of its kind: the id of the activity, child, or receiver."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Everything else that is compared: `Contents`, or maps of them, seconds, texts, numbers."""
    event_id: int = 0
    """Of Temporal's event, when it is recorded."""
    index: int = -1
    """Which of the commands of its activation it is, when it is asked for now."""


class Run:
    """What the server, or the replayer, fills in for commands that leave it open."""

    def __init__(self, started: WorkflowExecutionStartedEventAttributes) -> None:
        self._started, self.type = started, started.workflow_type.name
        self._limit = _seconds(started.workflow_run_timeout)

    def queue(self, name: str, replayers: str) -> str:
        """Return a task queue; the replayer has one of its own."""
        return self._started.task_queue.name if name in ("", replayers) else name

    def timeouts(self, asked: ScheduleActivity) -> dict[str, float]:
        """Return an activity's timeouts as the server records them: see its `validateActivityScheduleAttributes`."""
        close, start = _seconds(asked.schedule_to_close_timeout), _seconds(asked.schedule_to_start_timeout)
        runs, beats = _seconds(asked.start_to_close_timeout), _seconds(asked.heartbeat_timeout)
        if close:
            start, runs = _least(start, close), _least(runs, close)
        else:
            close, start = self._limit, start or self._limit
        close, start, runs = (_least(each, self._limit) if self._limit else each for each in (close, start, runs))
        return {
            "schedule_to_close_timeout": close,
            "schedule_to_start_timeout": start,
            "start_to_close_timeout": runs,
            "heartbeat_timeout": min(beats, runs) if runs else beats,
        }


def recorded(event: HistoryEvent) -> Command | None:
    """Return the command that an event records, if it is one of those that are compared."""
    made = _recorded(event) if event.event_type in _COMPARED else None
    return Command(made.kind, made.name, made.id, made.fields, event.event_id) if made else None


def _recorded(event: HistoryEvent) -> Command | None:
    match event.event_type:
        case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            did = event.activity_task_scheduled_event_attributes
            given = {
                "input": _contents(did.input.payloads),
                "task_queue": did.task_queue.name,
                "schedule_to_close_timeout": _seconds(did.schedule_to_close_timeout),
                "schedule_to_start_timeout": _seconds(did.schedule_to_start_timeout),
                "start_to_close_timeout": _seconds(did.start_to_close_timeout),
                "heartbeat_timeout": _seconds(did.heartbeat_timeout),
                **_retries(did.retry_policy),
            }
            return Command("activity", did.activity_type.name, did.activity_id, given)
        case EventType.EVENT_TYPE_TIMER_STARTED:
            timer = event.timer_started_event_attributes
            return Command("timer", id=timer.timer_id, fields={"seconds": _seconds(timer.start_to_fire_timeout)})
        case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            child = event.start_child_workflow_execution_initiated_event_attributes
            given = {
                "input": _contents(child.input.payloads),
                "task_queue": child.task_queue.name,
                "parent_close_policy": child.parent_close_policy,
                "search_attributes": _map(child.search_attributes.indexed_fields),
                "memo": _said(child.memo.fields),
            }
            return Command("child", child.workflow_type.name, child.workflow_id, given)
        case EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED:
            sent = event.signal_external_workflow_execution_initiated_event_attributes
            given = {"input": _contents(sent.input.payloads)}
            return Command("signal", sent.signal_name, sent.workflow_execution.workflow_id, given)
        case EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED:
            stop = event.request_cancel_external_workflow_execution_initiated_event_attributes
            return None if stop.child_workflow_only else Command("cancel", id=stop.workflow_execution.workflow_id)
        case EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
            found = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
            return None if _PATCHES in found else Command("attributes", fields=_map(found))
        case EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED:
            shown = event.workflow_properties_modified_event_attributes.upserted_memo.fields
            return Command("memo", fields=_map(shown))
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            return Command("accept")
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
            outcome = event.workflow_execution_update_completed_event_attributes.outcome
            if outcome.HasField("failure"):
                return Command("answer", fields=_failure(outcome.failure))
            return Command("answer", fields={"result": _contents(outcome.success.payloads)})
        case _:
            return _ending(event)


def _ending(event: HistoryEvent) -> Command | None:
    match event.event_type:
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            result = event.workflow_execution_completed_event_attributes.result
            return Command("complete", fields={"result": _contents(result.payloads)})
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            return Command("fail", fields=_failure(event.workflow_execution_failed_event_attributes.failure))
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
            return Command("cancelled")
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
            goes_on = event.workflow_execution_continued_as_new_event_attributes
            given = {"input": _contents(goes_on.input.payloads), "memo": _said(goes_on.memo.fields)}
            return Command("continue", goes_on.workflow_type.name, fields=given)
        case _:
            return None


def asked(commands: Iterable[WorkflowCommand], run: Run, queue: str) -> list[Command]:
    """Return what the commands of one workflow task ask for, in the order in which the server is given them.

    What is cancelled within the task in which it was begun is never sent, and the end of the workflow is sent last.

    Args:
        commands: In the order in which the code made them.
        run: Which run it is.
        queue: The replayer's task queue.
    """
    all_of_them = list(commands)
    never = set(filter(None, map(_cancelled, all_of_them)))
    found = []
    for index, command in enumerate(all_of_them):
        if (_begun(command) not in never) and (made := _asked(command, run, queue)):
            found.append(Command(made.kind, made.name, made.id, made.fields, index=index))
    return sorted(found, key=lambda each: each.kind in ENDS)


def _begun(command: WorkflowCommand) -> tuple[str, int] | None:
    kind = command.WhichOneof("variant")
    match kind:
        case (
            "start_timer"
            | "schedule_activity"
            | "start_child_workflow_execution"
            | "signal_external_workflow_execution"
        ):
            return kind, getattr(command, kind).seq
        case _:
            return None


def _cancelled(command: WorkflowCommand) -> tuple[str, int] | None:
    match command.WhichOneof("variant"):
        case "cancel_timer":
            return "start_timer", command.cancel_timer.seq
        case "request_cancel_activity":
            return "schedule_activity", command.request_cancel_activity.seq
        case "cancel_child_workflow_execution":
            return "start_child_workflow_execution", command.cancel_child_workflow_execution.child_workflow_seq
        case "cancel_signal_workflow":
            return "signal_external_workflow_execution", command.cancel_signal_workflow.seq
        case _:
            return None


def _asked(command: WorkflowCommand, run: Run, queue: str) -> Command | None:
    match command.WhichOneof("variant"):
        case "schedule_activity":
            does = command.schedule_activity
            given = {
                "input": _contents(does.arguments),
                "task_queue": run.queue(does.task_queue, queue),
                **run.timeouts(does),
                **_retries(does.retry_policy),
            }
            return Command("activity", does.activity_type, does.activity_id, given)
        case "start_timer":
            timer = command.start_timer
            return Command("timer", id=str(timer.seq), fields={"seconds": _seconds(timer.start_to_fire_timeout)})
        case "start_child_workflow_execution":
            child = command.start_child_workflow_execution
            given = {
                "input": _contents(child.input),
                "task_queue": run.queue(child.task_queue, queue),
                "parent_close_policy": int(child.parent_close_policy),
                "search_attributes": _map(child.search_attributes.indexed_fields),
                "memo": _said(child.memo),
            }
            return Command("child", child.workflow_type, child.workflow_id, given)
        case "signal_external_workflow_execution":
            sends = command.signal_external_workflow_execution
            receiver = sends.child_workflow_id or sends.workflow_execution.workflow_id
            return Command("signal", sends.signal_name, receiver, {"input": _contents(sends.args)})
        case "request_cancel_external_workflow_execution":
            stops = command.request_cancel_external_workflow_execution
            return Command("cancel", id=stops.workflow_execution.workflow_id)
        case "upsert_workflow_search_attributes":
            return Command(
                "attributes", fields=_map(command.upsert_workflow_search_attributes.search_attributes.indexed_fields)
            )
        case "modify_workflow_properties":
            return Command("memo", fields=_map(command.modify_workflow_properties.upserted_memo.fields))
        case "update_response":
            response = command.update_response
            match response.WhichOneof("response"):
                case "accepted":
                    return Command("accept")
                case "completed":
                    return Command("answer", fields={"result": _contents([response.completed])})
                case _:
                    return Command("answer", fields=_failure(response.rejected))
        case "complete_workflow_execution":
            done = command.complete_workflow_execution
            return Command("complete", fields={"result": _contents([done.result] if done.HasField("result") else [])})
        case "fail_workflow_execution":
            return Command("fail", fields=_failure(command.fail_workflow_execution.failure))
        case "cancel_workflow_execution":
            return Command("cancelled")
        case "continue_as_new_workflow_execution":
            goes_on = command.continue_as_new_workflow_execution
            given = {"input": _contents(goes_on.arguments), "memo": _said(goes_on.memo)}
            return Command("continue", goes_on.workflow_type or run.type, fields=given)
        case _:
            return None


def _contents(payloads: Iterable[Payload]) -> Contents:
    return tuple(Content(_encoding(each), each.data) for each in payloads)


def _encoding(payload: Payload) -> bytes:
    return b"elsewhere" if is_reference(payload) else payload.metadata.get("encoding", b"")


def _map(fields: Mapping[str, Payload]) -> dict[str, Contents]:
    return {key: _contents([fields[key]]) for key in sorted(fields)}


def _said(memo: Mapping[str, Payload]) -> dict[str, Contents]:
    """Return the memo of a new run, without what is empty: the server leaves that out."""
    return {key: held for key, held in _map(memo).items() if value_of(held[0]) is not None}


def _failure(failure: Failure) -> dict[str, Any]:
    info = failure.application_failure_info
    return {"type": info.type, "message": failure.message, "details": _contents(info.details.payloads)}


def _retries(policy: RetryPolicy) -> dict[str, Any]:
    """Return a retry policy with what the server fills in. Source: its `EnsureRetryPolicyDefaults`."""
    initial = _seconds(policy.initial_interval) or 1.0
    return {
        "retry.initial_interval": initial,
        "retry.backoff_coefficient": policy.backoff_coefficient or 2.0,
        "retry.maximum_interval": _seconds(policy.maximum_interval) or 100 * initial,
        "retry.maximum_attempts": policy.maximum_attempts,
        "retry.non_retryable_error_types": tuple(policy.non_retryable_error_types),
    }


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _least(asked_for: float, limit: float) -> float:
    return min(asked_for, limit) if asked_for else limit


def tasks(events: Sequence[HistoryEvent]) -> dict[int, tuple[int, list[Command]]]:
    """Return the commands of each completed workflow task, by the id of the event of its start.

    Each with the number of the event that says it was completed.
    """
    found: dict[int, tuple[int, list[Command]]] = {}
    latest: list[Command] = []
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            latest = []
            found[event.workflow_task_completed_event_attributes.started_event_id] = (event.event_id, latest)
        elif command := recorded(event):
            latest.append(command)
    return found
