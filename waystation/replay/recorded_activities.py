"""The activities of a recording: their inputs, the log before each, what came of it, and the attempts it took."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from waystation.core import (
    CallLost,
    CallRef,
    CallReturned,
    Ended,
    Failure,
    Log,
    ModelCallInput,
    ModelLost,
    ModelReplied,
    ModelReply,
    ModelReplyRef,
    Position,
    ToolCallInput,
    ToolOutcome,
    WaystationError,
    ids,
)
from waystation.history import read_content, seconds_of
from waystation.replay.recording import Recording


class NoSuchStep(WaystationError):
    """An event was not made by such a step, or what the step was given is not recorded."""


@dataclass(frozen=True, kw_only=True)
class _Step:
    log: Log
    """As it was just before; of a tool call that never ran, as it was last."""
    scheduled: Mapping[str, Any] | None
    """The recorded fields of `activity.Info`. None: it never ran, because nobody has approved it, or the invocation
    ended before."""
    failure: Failure | None
    """Why there is no result, when it ran and none came."""


@dataclass(frozen=True, kw_only=True)
class ModelStep(_Step):
    """A model call."""

    number: int
    given: ModelCallInput
    reply: ModelReply | None


@dataclass(frozen=True, kw_only=True)
class ToolStep(_Step):
    """A run of a tool call."""

    function_call_id: str
    given: ToolCallInput
    outcome: ToolOutcome | None


def model_step(recording: Recording, number: int) -> ModelStep:
    """Return model call `number`.

    Raises:
        NoSuchStep: There is none, or its run's history is lost.
    """
    activity_id = str(ModelReplyRef(number))
    data, scheduled = _scheduled(recording, activity_id)
    if scheduled is None:
        raise NoSuchStep(f"The histories of {recording.source!r} hold no model call {number}.")
    try:
        given = ModelCallInput.model_validate_json(data)
    except ValidationError:
        raise NoSuchStep(f"The input of model call {number} of {recording.source!r} cannot be read.") from None
    reply, failure = None, None
    for entry in recording.log.entries:
        match entry.body:
            case ModelReplied(number=found, reply=reply_found) if found == number:
                reply = reply_found
            case ModelLost(number=found, failure=lost) if found == number:
                failure = lost
    log = _before(recording, given, activity_id)
    return ModelStep(number=number, log=log, given=given, scheduled=scheduled, reply=reply, failure=failure)


def tool_step(recording: Recording, function_call_id: str, run: int | None = None) -> ToolStep:
    """Return a run of a tool call, by default its last.

    Raises:
        NoSuchStep: There is no such call.
    """
    call = recording.log.state.calls.get(function_call_id)
    if call is None:
        known = ", ".join(recording.log.state.calls) or "none"
        raise NoSuchStep(f"{recording.source!r} has no call {function_call_id!r}; its calls: {known}.")
    for number in range(call.run, -1, -1) if run is None else [run]:
        activity_id = str(CallRef(function_call_id, number))
        data, scheduled = _scheduled(recording, activity_id)
        if scheduled:
            break
    else:
        return _never_ran(recording, function_call_id)
    try:
        given = ToolCallInput.model_validate_json(data)
    except ValidationError:
        raise NoSuchStep(f"{function_call_id!r} of {recording.source!r} calls no tool but an agent.") from None
    outcome, failure = None, None
    for entry in recording.log.entries:
        match entry.body:
            case CallReturned(outcome=returned, run=at) if returned.function_call_id == call.id and at == number:
                outcome = returned
            case CallLost(function_call_id=id, failure=lost, run=at) if id == call.id and at == number:
                failure = lost
    return ToolStep(
        function_call_id=function_call_id,
        log=_before(recording, given, activity_id),
        given=given,
        scheduled=scheduled,
        outcome=outcome,
        failure=failure,
    )


def _never_ran(recording: Recording, function_call_id: str) -> ToolStep:
    """Return a call of which no run is recorded, as it would have run at the last moment of the recording."""
    log = recording.after(len(recording.log.entries))
    call = log.state.calls[function_call_id]
    if call.call.kind in ("agent", "answered"):
        what = "calls an agent" if call.call.kind == "agent" else "was answered when the model's reply was read"
        raise NoSuchStep(f"{function_call_id!r} of {recording.source!r} {what}; there is no tool to run.")
    plan = call.call
    given = ToolCallInput(
        at=log.length,
        new=(),
        function_call_id=call.id,
        confirmation=call.tool_confirmation(),
        root=log.state.root,
        run=call.run,
        effect=plan.effect,
        timeout_s=plan.timeout_s,
        retries=plan.retries,
        digest=call.approved_digest,
    )
    return ToolStep(function_call_id=call.id, log=log, given=given, scheduled=None, outcome=call.outcome, failure=None)


def model_number(recording: Recording, event: int) -> int | None:
    """Return the number of the model call that gave an event; None when another step did.

    Raises:
        NoSuchEvent: There is no such event.
    """
    body = recording.log.entries[recording.moment(event).entries - 1].body
    if isinstance(body, Ended):  # because the model gave no answer: that makes no event of its own
        lost = [entry.body.number for entry in recording.log.entries if isinstance(entry.body, ModelLost)]
        return lost[-1] if lost else None
    return body.number if isinstance(body, ModelReplied) else None


def calls_in(recording: Recording, event: int) -> list[str]:
    """Return the ids of the tool calls that an event makes, asks for, or brings responses to, in its order."""
    found = recording.moment(event).event
    parts = ((found and found.content) or {}).get("parts") or ()
    named = dict.fromkeys(
        ids.requesting_call(str(held.get("id")))
        for part in parts
        for held in (part.get("functionCall"), part.get("functionResponse"))
        if held
    )
    return [id for id in named if id in recording.log.state.calls]


def _scheduled(recording: Recording, activity_id: str) -> tuple[bytes, Mapping[str, Any] | None]:
    """Return input and info of the activity scheduled last under an id; a reset may have had it scheduled twice."""
    data, info = b"", None
    for history in recording.histories:
        started = history.events[0].workflow_execution_started_event_attributes
        for event in history.events:
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_id == activity_id:
                data = read_content(scheduled.input.payloads)
                info = {
                    "workflow_run_id": started.original_execution_run_id,
                    "task_queue": scheduled.task_queue.name,
                    "heartbeat_timeout": scheduled.heartbeat_timeout.ToTimedelta() or None,
                    "attempt": efforts([history])[activity_id].attempts,
                }
    return data, info


def _before(recording: Recording, position: Position, activity_id: str) -> Log:
    """Return the log as it was when an activity was scheduled."""
    entries = position.at + len(position.new) - recording.log.entries_before
    if entries < 0:
        raise NoSuchStep(f"The log before {activity_id!r} of {recording.source!r} is lost with an earlier run.")
    return recording.after(entries)


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
