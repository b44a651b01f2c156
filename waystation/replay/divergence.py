"""Find the first divergence between a history and the current workflow code, and describe it in agent terms.

The commands of both are converted to a common form and compared, including inputs and options. Temporal's own replayer
compares the rest: patch markers and cancellations of work in flight, whose trace in a history depends on timing.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes
from temporalio.client import WorkflowHistory

from waystation.core import ids, summary
from waystation.core.contract import MEMO_PENDING, WORKFLOW
from waystation.core.errors import ForeignHistory, StoreFailed
from waystation.core.log import (
    AnswerCounted,
    AnswerIgnored,
    Began,
    Body,
    CallLost,
    CallReturned,
    CancelRequested,
    ChildReturned,
    DeadlinePassed,
    Log,
    MessageJoined,
    ModelLost,
    ModelReplied,
    call_id_of,
)
from waystation.core.payload import JsonObject, encode
from waystation.core.projection import ENGINE_ACTIVITIES, MODEL
from waystation.core.secrets import hide_secrets_at
from waystation.history import (
    EventType,
    build_log,
    find_run_ids,
    get_workflow_type,
    is_local_activity,
    read_local_activity,
)
from waystation.replay.comparison import ABSENT, compare_json
from waystation.storage import is_reference

UNKNOWN: Any = object()
"""A value that cannot be compared, because a codec encoded it, the store lacks it, or the server fills it in."""
_READABLE = frozenset({b"json/plain", b"json/protobuf", b"binary/null", b"binary/plain", b""})
_PATCHES = "TemporalChangeVersion"
"""The search attribute where the SDK lists the patches of a run. Commands that set it are not compared here."""


_RECORDED, _PRESENT = 0, 1
_Paths = tuple[str, str]
"""The path of a value in a history event (`_RECORDED`) and in an SDK command (`_PRESENT`).

Only these paths depend on private protobufs of the SDK, which no public type replaces.
"""


class _Form(NamedTuple):
    """The paths to the values of one kind of command."""

    kind: str
    message: _Paths
    name: _Paths | None = None
    id: _Paths | None = None
    fields: Mapping[str, _Paths] = {}
    """The paths of all other compared fields. If the name is empty, the value is a map of payloads, and each of its
    keys becomes a field."""


_CAPPED = ("schedule_to_start_timeout", "start_to_close_timeout")
_TIMEOUTS = ("schedule_to_close_timeout", *_CAPPED, "heartbeat_timeout")
_RETRIES = (
    *("initial_interval", "backoff_coefficient", "maximum_interval", "maximum_attempts"),
    "non_retryable_error_types",
)
_FILLED_IN = frozenset({*_TIMEOUTS[:3], *(f"retry.{name}" for name in _RETRIES)})
"""Options that the server fills in if the code does not set them. They are then not compared."""
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
    _Form("quick", ("", "schedule_local_activity"), ("", "activity_type"), ("", "activity_id")),
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
        "operation",
        ("nexus_operation_scheduled", "schedule_nexus_operation"),
        ("operation", "operation"),
        fields={name: (name, name) for name in ("endpoint", "service", "nexus_header", "input")},
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
"""The SDK's cancel commands, each mapped to the command that it cancels and the field that refers to that command."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that workflow code sends to the server."""

    kind: str
    """`activity`, `quick`, `timer`, `child`, `signal`, `cancel`, `attributes`, `memo`, `accept`, `answer`, `refuse`,
    `complete`, `fail`, `cancelled` or `continue`."""
    name: str = ""
    """The type of an activity, local activity or child workflow, or the name of a signal."""
    id: str = ""
    """The ID of the activity, the timer or the child workflow, or of the workflow that receives a signal."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All other values to compare. Payloads are decoded, and durations are in seconds."""
    event_id: int = 0
    """ID of the history event, or 0 if the command comes from a replay."""
    line: str | None = None
    """The line of workflow code that issued the command, if the command comes from a replay and the line is known."""


@dataclass(slots=True)
class Activation:
    """The commands that workflow code issued in one activation of a replay."""

    started: int
    """ID of the history event that started the workflow task."""
    commands: Sequence[tuple[Any, str | None]] = ()
    """The SDK's commands, each with the line that issued it."""
    failure: Any = None
    """The encoded failure of the workflow task, or None if the task did not fail."""
    waits_at: str | None = None
    """The line where the code is waiting or where it failed."""


def read_recorded_tasks(events: Sequence[HistoryEvent]) -> dict[int, tuple[int, list[Command]]]:
    """Return the commands of each completed workflow task, keyed by the ID of the task's start event.

    Each list of commands comes with the ID of the event that completed the task.
    """
    tasks: dict[int, tuple[int, list[Command]]] = {}
    latest: list[Command] = []
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            latest = []
            tasks[event.workflow_task_completed_event_attributes.started_event_id] = (event.event_id, latest)
        elif command := _read(event, _RECORDED, event_id=event.event_id):
            latest.append(command)
    return {start: (completed, _sort(commands)) for start, (completed, commands) in tasks.items()}


def _sort(commands: Sequence[Command]) -> list[Command]:
    """Return the commands of a workflow task with the local activities first, sorted by ID, and its end last.

    Markers record local activities in the order in which they ended, which may differ from that of a replay.
    """
    return sorted(
        commands, key=lambda item: (item.kind != "quick", item.kind in _ENDS, item.id if item.kind == "quick" else "")
    )


def read_present_commands(
    activations: Sequence[Activation], started: WorkflowExecutionStartedEventAttributes, queue: str
) -> list[Command]:
    """Return the commands of one workflow task in the form and order that the server would record.

    A command that the same task cancels is left out, because it is never sent. The command that ends the workflow is
    sent last.

    Args:
        activations: The activations of the task.
        started: The attributes of the event that started the run.
        queue: The replayer's own task queue.
    """
    commands = [command for activation in activations for command in activation.commands]
    never_sent = set()
    for command, _ in commands:
        if cancels := _CANCELS.get(variant := command.WhichOneof("variant")):
            never_sent.add((cancels[0], getattr(getattr(command, variant), cancels[1])))
    sent = []
    for command, line in commands:
        variant = command.WhichOneof("variant")
        if (variant, getattr(getattr(command, variant), "seq", None)) in never_sent:
            continue
        if present := _read(command, _PRESENT, line=line):
            _fill_in(present.fields, started, queue)
            sent.append(present)
    return _sort(sent)


def _fill_in(fields: Any, started: WorkflowExecutionStartedEventAttributes, queue: str) -> None:
    """Complete a command the way the server does; see the server's `validateActivityScheduleAttributes`."""
    if fields.get("task_queue") in ("", queue):
        fields["task_queue"] = started.task_queue.name
    run_limit = _to_python(started.workflow_run_timeout)
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
    """Return the command in a history event or an SDK command, or None if commands of that kind are not compared."""
    if side == _RECORDED and is_local_activity(message):
        ran = read_local_activity(message)
        return Command("quick", ran.type, ran.id, **about)
    variant = message.WhichOneof(("attributes", "variant")[side]) or ""
    for form in _find_forms(variant.removesuffix("_event_attributes"), side):
        attributes = getattr(message, variant)
        for name in form.message[side].split(".")[1:]:
            attributes = getattr(attributes, name) if attributes is not None and attributes.HasField(name) else None
        if attributes is None or (form.kind == "cancel" and getattr(attributes, "child_workflow_only", False)):
            continue
        fields: dict[str, Any] = {}
        for key, paths in form.fields.items():
            value = _to_python(_get(attributes, paths[side]))
            fields.update({key: value} if key else value)
        name, id = (_first_text(attributes, paths[side]) if paths else "" for paths in (form.name, form.id))
        return None if _PATCHES in fields else Command(form.kind, name, id, fields, **about)
    return None


@cache
def _find_forms(variant: str, side: int) -> list[_Form]:
    return [form for form in _FORMS if form.message[side].split(".")[0] == variant]


def _first_text(message: Any, paths: str) -> str:
    """Return the first non-empty text at one of the paths, which are separated by `|`, or an empty string."""
    return next(filter(None, (str(_get(message, path)) for path in paths.split("|"))), "")


def _get(message: Any, path: str) -> Any:
    return attrgetter(path)(message) if path else message


def _to_python(value: Any) -> Any:
    """Convert a protobuf value to a Python value: durations to seconds, and payloads to their decoded content."""
    match value:
        case Duration():
            return value.seconds + value.nanos / 1e9
        case Payload():
            return _decode_payload(value)
        case Mapping():
            return {key: _to_python(value[key]) for key in sorted(value)}
        case Sequence() if not isinstance(value, str):
            items = [_decode_payload(item) if isinstance(item, Payload) else item for item in value]
            return items[0] if len(items) == 1 else items
        case _:
            return value


def _decode_payload(payload: Payload) -> Any:
    encoding = payload.metadata.get("encoding", b"")
    if encoding not in _READABLE or is_reference(payload):
        return UNKNOWN
    if encoding == b"binary/null":
        return None
    try:
        return from_json(payload.data)
    except ValueError:
        return payload.data


DIFFERENCES = 5
"""Maximum number of differing fields to report for two commands."""
_CONSEQUENCES = {"memo": 1, "timer": 2, "accept": 2, "attributes": 3}
"""Kinds of commands that only follow from other commands, each with a rank; all other kinds have rank 0. If several
commands differ, the one with the lowest rank is reported."""
_COMMANDS = {
    "timer": "wait {command.fields[seconds]:g} s at most",
    "child": "start {command.name} {command.id}",
    "signal": "send {command.name!r} to {command.id}",
    "cancel": "cancel {command.id}",
    "accept": "accept an update",
    "cancelled": "end as cancelled",
    "continue": "continue as new",
}
_ENTRIES = {
    Began: "the start",
    ModelReplied: "model reply {body.number}",
    ModelLost: "model reply {body.number}",
    CallReturned: "the result of {body.outcome.function_call_id}",
    CallLost: "the result of {body.function_call_id}",
    ChildReturned: "the result of {body.function_call_id}",
    AnswerIgnored: "an answer that was not accepted",
    DeadlinePassed: "the deadline of {body.function_call_id}",
    MessageJoined: "another message",
    CancelRequested: "the request to cancel",
}
_WAITS = {
    "confirmation": "approval of",
    "credential": "a login for",
    "long_running": "the answer to",
    "budget": "more budget:",
}


class Part(NamedTuple):
    """A field whose values differ between two commands."""

    name: str
    """A path such as `input.args.amount`."""
    recorded: Any
    now: Any

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        return {"name": self.name, "recorded": plain_of(self.recorded), "now": plain_of(self.now)}


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first difference between a recording and the current code."""

    workflow_id: str
    run_id: str
    recorded: str
    """The recorded command, such as `call pay(amount=200)`, or `nothing`."""
    now: str
    """The command that the current code issues, such as `wait for approval of pay(amount=200)`, or `nothing`. If the
    workflow task fails, the reason."""
    event: int | None
    """Number of the last agent event before the divergence, or None if there is no readable log. Sessions and scopes
    have no log."""
    after: str | None
    """The last log entry before the divergence that can cause commands, such as `model reply 2`, or None."""
    history_event: int
    """ID of the recorded command's history event. If no command was recorded, `Difference.completed`."""
    line: str | None = None
    """The line of workflow code, such as `workflows/scheduler.py:110 in call_tool`, or None if it is unknown."""
    parts: Sequence[Part] = ()
    """The fields that differ, if both commands have the same kind, name and ID."""
    failure: str | None = None
    """Error type of the failed workflow task, or None if no task failed."""
    run: int = 1
    """Number of the workflow run, starting at 1."""
    runs: int = 1

    def __str__(self) -> str:
        """Describe the divergence on one line."""
        where = [f"after event {self.event}"] if self.event is not None else []
        where += [f"history event {self.history_event}"]
        after = f", after {self.after}" if self.after else ""
        line = f", in {self.line}" if self.line else ""
        run = f"Run {self.run} of {self.runs}: " if self.runs > 1 else ""
        return f"{run}recorded: {self.recorded}{after} ({', '.join(where)}); now: {self.now}{line}"

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        return {
            "workflow_id": self.workflow_id,
            "run_id": self.run_id,
            "run": self.run,
            "runs": self.runs,
            "recorded": self.recorded,
            "now": self.now,
            "event": self.event,
            "after": self.after,
            "history_event": self.history_event,
            "line": self.line,
            "failure": self.failure,
            "parts": [part.to_json() for part in self.parts],
        }


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A divergence in Temporal's terms. A command is None if that side has no command to report."""

    completed: int
    """ID of the event that completed the workflow task. If only Temporal's replayer finds the difference, the ID of the
    event that it names."""
    recorded: Command | None = None
    now: Command | None = None
    parts: Sequence[Part] = ()
    swapped: bool = False
    """Whether both sides have the same commands in a different order."""
    line: str | None = None
    failure: str | None = None
    """Why the workflow task fails, or None if it does not fail."""
    failure_type: str | None = None


def find_first_difference(history: WorkflowHistory, activations: Sequence[Activation], queue: str) -> Difference | None:
    """Return the first difference between a history and its replay, or None if they match.

    Commands after the last recorded workflow task are ignored, because nothing has been recorded for them yet.

    Args:
        history: The history, with decoded payloads.
        activations: The activations of the replay.
        queue: The replayer's own task queue.
    """
    started = history.events[0].workflow_execution_started_event_attributes
    own = find_run_ids(history.events)
    tasks = read_recorded_tasks(history.events)
    updated, late = False, list[Command]()
    pending = deque(activations)
    for start in sorted(tasks):
        completed, recorded = tasks[start]
        # A workflow task without commands is replayed together with the next task.
        done = []
        while pending and pending[0].started <= start:
            done.append(pending.popleft())
        for activation in done:
            if activation.failure:
                failure, kind = activation.failure, activation.failure.application_failure_info.type
                return Difference(
                    completed=completed,
                    recorded=_most_informative(recorded),
                    line=activation.waits_at,
                    failure=failure.message.strip() or kind,
                    failure_type=kind,
                )
        if not done:
            if recorded and pending:
                return Difference(completed=completed, recorded=_most_informative(recorded))
            continue
        updated = updated or any(command.kind == "accept" for command in recorded)
        present, late = _split_late(recorded, _sort([*late, *read_present_commands(done, started, queue)]))
        for number, (one, other) in enumerate(zip_longest(recorded, present)):
            if one and other and _is_same_command(one, other):
                if parts := _compare_fields(one, other, own, updated=updated):
                    return Difference(completed=completed, recorded=one, now=other, parts=parts, line=other.line)
                continue
            return _compare_rest(completed, recorded[number:], present[number:], done[-1].waits_at)
    return None


def _split_late(recorded: Sequence[Command], present: Sequence[Command]) -> tuple[list[Command], list[Command]]:
    """Split the commands of a workflow task into those to compare and local activities that a later task records.

    A local activity that lasts almost as long as the timeout of workflow tasks outlasts its task.
    """
    late = [command for command in present if command.kind == "quick" and not _is_among(command, recorded)]
    ended = [command for command in present if command not in late]
    return (ended, late) if len(ended) == len(recorded) else (list(present), [])


def _compare_rest(
    completed: int, recorded: Sequence[Command], present: Sequence[Command], waits_at: str | None
) -> Difference:
    """Return the difference between the remaining commands of a workflow task, which start where the sides differ."""
    missing = [command for command in recorded if not _is_among(command, present)]
    added = [command for command in present if not _is_among(command, recorded)]
    swapped = bool(recorded and present and not missing and not added)
    one, other = (recorded[0], present[0]) if swapped else (_most_informative(missing), _most_informative(added))
    line = other.line if other else waits_at
    return Difference(completed=completed, recorded=one, now=other, swapped=swapped, line=line)


def _most_informative(commands: Sequence[Command]) -> Command | None:
    return min(commands, key=lambda command: _CONSEQUENCES.get(command.kind, 0), default=None)


def _is_among(command: Command, others: Sequence[Command]) -> bool:
    return any(_is_same_command(command, other) for other in others)


def _is_same_command(one: Command, other: Command) -> bool:
    return (one.kind, one.name, one.id) == (other.kind, other.name, other.id)


def _compare_fields(recorded: Command, now: Command, own: Sequence[str], *, updated: bool) -> list[Part]:
    """Return the fields that differ between two commands with the same name and ID, without harmless differences.

    At most `DIFFERENCES` fields are returned.

    `own` contains the IDs of the run. `updated` says whether the run has accepted any updates so far.
    """
    differences = compare_json(recorded.fields, now.fields)
    parts = (Part(item.place, item.recorded, item.now) for item in differences)
    return [part for part in parts if not _is_harmless(part, recorded, own, updated=updated)][:DIFFERENCES]


def _is_harmless(part: Part, command: Command, own: Sequence[str], *, updated: bool) -> bool:
    name, recorded, now = part
    if UNKNOWN in (recorded, now):
        return True
    # Recorded types can gain optional fields. Older recordings lack them, while current code may write their defaults.
    if recorded is ABSENT and now in (None, "", False, 0, [], {}):
        return True
    # The same applies to the run and the question of a pending call, which every run publishes.
    if recorded is ABSENT and name.startswith(MEMO_PENDING) and name.endswith(("].run", "].question")):
        return True
    # In a replay, a run has a single ID, but a run that was reset was recorded with several.
    if name.endswith(".run_id") and recorded in own and now in own:
        return True
    # On replay, results that arrived before an update with no effect are applied after that update. Therefore, the
    # entries that a command lists as applied, and a session's progress, may move to a different command.
    if updated and (name == "input.at" or name.startswith("input.new")):
        return True
    return command.kind == "answer" and name in ("result.open", "result.status") and now is not ABSENT


def to_divergence(histories: Sequence[WorkflowHistory], run: int, difference: Difference) -> Divergence:
    """Describe a difference in agent terms. `run` is the index of the history where the difference occurs."""
    history = histories[run]
    log = _log_until(histories, run, difference.completed)
    entries = reversed(log.entries) if log else ()
    recorded, now = _describe_both(difference, log)
    started = history.events[0].workflow_execution_started_event_attributes
    return Divergence(
        workflow_id=history.workflow_id,
        run_id=started.original_execution_run_id,
        recorded=recorded,
        now=now,
        event=log.state.events_before + len(log.state.events) if log else None,
        after=next(filter(None, (_describe_entry(entry.body) for entry in entries)), None),
        history_event=difference.recorded.event_id if difference.recorded else difference.completed,
        line=difference.line,
        parts=difference.parts,
        failure=difference.failure_type,
        run=run + 1,
        runs=len(histories),
    )


def _log_until(histories: Sequence[WorkflowHistory], run: int, event_id: int) -> Log | None:
    """Return an invocation's log right after a history event, or None if there is no readable log."""
    if get_workflow_type(histories[run]) != WORKFLOW or not event_id:  # 0: it differs before the first workflow task
        return None
    cut = WorkflowHistory(histories[run].workflow_id, histories[run].events[:event_id])
    try:
        return build_log([*histories[:run], cut])
    except (ForeignHistory, StoreFailed):
        return None


def _describe_both(difference: Difference, log: Log | None) -> tuple[str, str]:
    one, other = describe_command(difference.recorded, log), describe_command(difference.now, log)
    if difference.failure:
        return one if difference.recorded else "another command", f"the workflow task fails: {difference.failure}"
    if difference.swapped:
        return f"{one}, before {other}", f"{other} first"
    if difference.parts and one == other:
        part = difference.parts[0]
        return f"{one}, with {part.name} {format_value(part.recorded, part.name)}", (
            f"the same with {format_value(part.now, part.name)}"
        )
    return one, other


def describe_command(command: Command | None, log: Log | None) -> str:
    """Describe a command in agent terms. `log` is the invocation's log so far, if there is one."""
    if command is None:
        return "nothing"
    fields = command.fields
    params = fields.get("input")
    params = params if isinstance(params, dict) else {}
    match command.kind:
        case "activity":
            return _describe_activity(command.name, params, log)
        case "quick":
            call = _describe_activity(command.name, {"function_call_id": call_id_of(command.id)}, log)
            return f"{call} in the workflow task"
        case "child" if command.name == WORKFLOW:
            return f"start agent {params.get('agent')} as {command.id}"
        case "memo":
            return _describe_memo(fields)
        case "attributes":
            return f"set search attributes {', '.join(f'{key}={_text(value)}' for key, value in fields.items())}"
        case "answer" | "complete" as kind:
            result = fields["result"]
            text = result.get("text") if isinstance(result, dict) else None
            return f"{'complete' if kind == 'complete' else 'answer an update'} with {_text(text or result)}"
        case "refuse" | "fail" as kind:
            action = "fail" if kind == "fail" else "refuse an update"
            return f"{action} with {fields['type']}: {summary.clip(fields['message'])}"
        case kind:
            return _COMMANDS[kind].format(command=command)


def _describe_activity(name: str, params: JsonObject, log: Log | None) -> str:
    if name == MODEL.name and params.get("phase") == "leave":
        return f"callbacks of {params.get('agent')}"
    if name in ENGINE_ACTIVITIES:
        return ENGINE_ACTIVITIES[name].description.format_map(defaultdict(lambda: None, params))
    if "." not in name or "function_call_id" not in params:
        return f"run activity {name}"
    args = params.get("args")
    if args is None and log and (call := log.state.calls.get(params["function_call_id"])):
        args = call.args
    return f"call {summary.call(name.rpartition('.')[2], args if isinstance(args, dict) else {})}"


def _describe_memo(fields: Mapping[str, Any]) -> str:
    if fields and MEMO_PENDING not in fields:
        return f"set memo {', '.join(fields)}"
    pending = fields.get(MEMO_PENDING)
    descriptions = []
    for call in pending if isinstance(pending, list) else ():
        args = call.get("args")
        args = args if isinstance(args, dict) and set(args) != {"omitted_bytes"} else {}
        descriptions.append(
            f"{_WAITS.get(str(call.get('kind')), 'an answer to')} {summary.call(str(call.get('tool')), args)}"
        )
    return f"wait for {' and '.join(descriptions)}" if descriptions else "clear the pending calls"


def _describe_entry(body: Body) -> str | None:
    """Describe a log entry that can cause commands, or return None for any other entry."""
    if isinstance(body, AnswerCounted):
        return f"the answer to {ids.requesting_call(body.function_call_id)}"
    template = _ENTRIES.get(type(body))
    return template.format(body=body) if template else None


def _text(value: Any) -> str:
    return summary.clip(value if isinstance(value, str) else encode(plain_of(value)).decode())


def format_value(value: Any, place: str = "") -> str:
    """Format a value on one line, clipped and with secrets hidden. Names in the path `place` can identify a secret."""
    return "absent" if value is ABSENT else summary.clip(encode(hide_secrets_at(place, plain_of(value))).decode())


def plain_of(value: Any) -> Any:
    """Return `value`, or a description of it if it is bytes, or None if it is absent or unknown."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return None if value is ABSENT or value is UNKNOWN else value
