"""The commands of workflow tasks in one form: as a history recorded them, and as the present code makes them.

Temporal's own replayer compares the rest: markers of patches, and the cancelling of what is in flight, whose trace in
a history depends on how far it had come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes

from waystation.history import EventType
from waystation.storage import is_reference

UNKNOWN: Any = object()
"""Content that a codec has encoded or that is in no store, and an option that the code leaves to the server."""
_READABLE = frozenset({b"json/plain", b"json/protobuf", b"binary/null", b"binary/plain", b""})
_PATCHES = "TemporalChangeVersion"
"""Search attribute in which the SDK lists the patches of a run."""


_RECORDED, _PRESENT = 0, 1
_Paths = tuple[str, str]
"""Where a history event holds something (`_RECORDED`), and where the SDK's command does (`_PRESENT`).

Only these paths depend on the SDK's private protobufs: no public type holds what workflow code asks for in a replay.
"""


class _Form(NamedTuple):
    """Where one kind of command holds its particulars."""

    kind: str
    message: _Paths
    name: _Paths | None = None
    id: _Paths | None = None
    fields: Mapping[str, _Paths] = {}
    """Everything else that is compared. A map of payloads under an empty name gives one field for each key."""


_CAPPED = ("schedule_to_start_timeout", "start_to_close_timeout")
_TIMEOUTS = ("schedule_to_close_timeout", *_CAPPED, "heartbeat_timeout")
_RETRIES = (
    *("initial_interval", "backoff_coefficient", "maximum_interval", "maximum_attempts"),
    "non_retryable_error_types",
)
_FILLED_IN = frozenset({*_TIMEOUTS[:3], *(f"retry.{name}" for name in _RETRIES)})
"""Options that the server fills in when the code leaves them open."""
_FAILURE = {
    "type": ("application_failure_info.type",) * 2,
    "message": ("message",) * 2,
    "details": ("application_failure_info.details.payloads",) * 2,
}
_FORMS = (
    _Form(
        "activity",
        ("activity_task_scheduled", "schedule_activity"),
        ("activity_type.name", "activity_type"),
        ("activity_id", "activity_id"),
        {
            "input": ("input.payloads", "arguments"),
            "task_queue": ("task_queue.name", "task_queue"),
            **{name: (name, name) for name in _TIMEOUTS},
            **{f"retry.{name}": (f"retry_policy.{name}", f"retry_policy.{name}") for name in _RETRIES},
        },
    ),
    _Form(
        "timer",
        ("timer_started", "start_timer"),
        id=("timer_id", "seq"),
        fields={"seconds": ("start_to_fire_timeout", "start_to_fire_timeout")},
    ),
    _Form(
        "child",
        ("start_child_workflow_execution_initiated", "start_child_workflow_execution"),
        ("workflow_type.name", "workflow_type"),
        ("workflow_id", "workflow_id"),
        {
            "input": ("input.payloads", "input"),
            "task_queue": ("task_queue.name", "task_queue"),
            "parent_close_policy": ("parent_close_policy", "parent_close_policy"),
            "search_attributes": ("search_attributes.indexed_fields", "search_attributes.indexed_fields"),
            "memo": ("memo.fields", "memo"),
        },
    ),
    _Form(
        "signal",
        ("signal_external_workflow_execution_initiated", "signal_external_workflow_execution"),
        ("signal_name", "signal_name"),
        ("workflow_execution.workflow_id", "child_workflow_id|workflow_execution.workflow_id"),
        {"input": ("input.payloads", "args")},
    ),
    _Form(
        "cancel",
        ("request_cancel_external_workflow_execution_initiated", "request_cancel_external_workflow_execution"),
        id=("workflow_execution.workflow_id", "workflow_execution.workflow_id"),
    ),
    _Form(
        "attributes",
        ("upsert_workflow_search_attributes", "upsert_workflow_search_attributes"),
        fields={"": ("search_attributes.indexed_fields", "search_attributes.indexed_fields")},
    ),
    _Form(
        "memo",
        ("workflow_properties_modified", "modify_workflow_properties"),
        fields={"": ("upserted_memo.fields", "upserted_memo.fields")},
    ),
    _Form("accept", ("workflow_execution_update_accepted", "update_response.accepted")),
    _Form(
        "answer",
        ("workflow_execution_update_completed.outcome.success", "update_response.completed"),
        fields={"result": ("payloads", "")},
    ),
    _Form(
        "refuse", ("workflow_execution_update_completed.outcome.failure", "update_response.rejected"), fields=_FAILURE
    ),
    _Form(
        "complete",
        ("workflow_execution_completed", "complete_workflow_execution"),
        fields={"result": ("result.payloads", "result")},
    ),
    _Form("fail", ("workflow_execution_failed.failure", "fail_workflow_execution.failure"), fields=_FAILURE),
    _Form("cancelled", ("workflow_execution_canceled", "cancel_workflow_execution")),
    _Form(
        "continue",
        ("workflow_execution_continued_as_new", "continue_as_new_workflow_execution"),
        fields={"input": ("input.payloads", "arguments"), "memo": ("memo.fields", "memo")},
    ),
)
_ENDS = frozenset({"complete", "fail", "cancelled", "continue"})
_CANCELS = {
    "cancel_timer": ("start_timer", "seq"),
    "request_cancel_activity": ("schedule_activity", "seq"),
    "cancel_child_workflow_execution": ("start_child_workflow_execution", "child_workflow_seq"),
    "cancel_signal_workflow": ("signal_external_workflow_execution", "seq"),
}
"""The SDK's commands that cancel, each with what it cancels, and the field that holds the number of that."""


@dataclass(frozen=True, slots=True)
class Command:
    """One request to the server."""

    kind: str
    """`activity`, `timer`, `child`, `signal`, `cancel`, `attributes`, `memo`, `accept`, `answer`, `refuse`, `complete`,
    `fail`, `cancelled` or `continue`."""
    name: str = ""
    """The type of an activity or a child, or the name of a signal."""
    id: str = ""
    """The id of the activity, child or receiver."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Everything else that is compared; payloads are decoded, durations are in seconds."""
    event_id: int = 0
    """Of the history event, when it is recorded."""
    line: str | None = None
    """The line of the workflow code that made it, when it is made now and the line is known."""


@dataclass(slots=True)
class Activation:
    """What workflow code did in one go during a replay."""

    started: int
    """Id of the event with which its workflow task started."""
    commands: Sequence[tuple[Any, str | None]] = ()
    """The SDK's commands, each with the line that made it."""
    failure: Any = None
    """The failure of the workflow task, as the SDK encodes it."""
    rests_in: str | None = None
    """The line at which the code waits afterwards, or at which it failed."""


def recorded_tasks(events: Sequence[HistoryEvent]) -> dict[int, tuple[int, list[Command]]]:
    """Return the commands of each completed workflow task, by the id of the event with which it started.

    Each with the id of the event with which it was completed.
    """
    tasks: dict[int, tuple[int, list[Command]]] = {}
    latest: list[Command] = []
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            latest = []
            tasks[event.workflow_task_completed_event_attributes.started_event_id] = (event.event_id, latest)
        elif command := _read(event, _RECORDED, event_id=event.event_id):
            latest.append(command)
    return tasks


def present_commands(
    activations: Sequence[Activation], started: WorkflowExecutionStartedEventAttributes, queue: str
) -> list[Command]:
    """Return the commands of one workflow task, as the server would record them.

    What is cancelled in the task that began it is never sent, and the end of the workflow is sent last.

    Args:
        activations: The code's, of this task.
        started: What the run began with.
        queue: The replayer's own task queue.
    """
    made = [command for activation in activations for command in activation.commands]
    never_sent = set()
    for command, _ in made:
        if cancels := _CANCELS.get(variant := command.WhichOneof("variant")):
            never_sent.add((cancels[0], getattr(getattr(command, variant), cancels[1])))
    commands = []
    for command, line in made:
        variant = command.WhichOneof("variant")
        if (variant, getattr(getattr(command, variant), "seq", None)) in never_sent:
            continue
        if present := _read(command, _PRESENT, line=line):
            _complete(present.fields, started, queue)
            commands.append(present)
    return sorted(commands, key=lambda command: command.kind in _ENDS)


def _complete(fields: Any, started: WorkflowExecutionStartedEventAttributes, queue: str) -> None:
    """Change a command to what the server makes of it, see its `validateActivityScheduleAttributes`."""
    if fields.get("task_queue") in ("", queue):
        fields["task_queue"] = started.task_queue.name
    run_limit = _plain(started.workflow_run_timeout)
    total = min(filter(None, (fields.get("schedule_to_close_timeout"), run_limit)), default=None)
    for name in _CAPPED:
        if total and fields.get(name):
            fields[name] = min(fields[name], total)
    if fields.get("start_to_close_timeout"):
        fields["heartbeat_timeout"] = min(fields["heartbeat_timeout"], fields["start_to_close_timeout"])
    for name in _FILLED_IN & fields.keys():
        if not fields[name]:
            fields[name] = UNKNOWN


def _read(message: Any, side: int, **about: Any) -> Command | None:
    """Return the command of a history event or of the SDK's command, if it is one that is compared."""
    variant = message.WhichOneof(("attributes", "variant")[side]) or ""
    for form in _forms(variant.removesuffix("_event_attributes"), side):
        held = getattr(message, variant)
        for name in form.message[side].split(".")[1:]:
            held = getattr(held, name) if held is not None and held.HasField(name) else None
        if held is None or (form.kind == "cancel" and getattr(held, "child_workflow_only", False)):
            continue
        fields: dict[str, Any] = {}
        for key, paths in form.fields.items():
            value = _plain(_at(held, paths[side]))
            fields.update({key: value} if key else value)
        name, id = (_first(held, paths[side]) if paths else "" for paths in (form.name, form.id))
        return None if _PATCHES in fields else Command(form.kind, name, id, fields, **about)
    return None


@cache
def _forms(variant: str, side: int) -> list[_Form]:
    return [form for form in _FORMS if form.message[side].split(".")[0] == variant]


def _first(message: Any, paths: str) -> str:
    """Return the first text that is not empty."""
    return next(filter(None, (str(_at(message, path)) for path in paths.split("|"))), "")


def _at(message: Any, path: str) -> Any:
    return attrgetter(path)(message) if path else message


def _plain(value: Any) -> Any:
    """Return a value of protobuf as one of Python."""
    match value:
        case Duration():
            return value.seconds + value.nanos / 1e9
        case Payload():
            return _content(value)
        case Mapping():
            return {key: _content(value[key]) for key in sorted(value)}
        case Sequence() if not isinstance(value, str):
            items = [_content(each) if isinstance(each, Payload) else each for each in value]
            return items[0] if len(items) == 1 else items
        case _:
            return value


def _content(payload: Payload) -> Any:
    encoding = payload.metadata.get("encoding", b"")
    if encoding not in _READABLE or is_reference(payload):
        return UNKNOWN
    if encoding == b"binary/null":
        return None
    try:
        return from_json(payload.data)
    except ValueError:
        return payload.data
