"""Invocations of sessions as tasks of A2A. Pure: the same log and the same calls always give the same task."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.struct_pb2 import Struct, Value

from waystation.client import parse_session_id
from waystation.core.contract import Event
from waystation.core.log import CallState, Log
from waystation.core.payload import JsonObject, encode
from waystation.interfaces.open_calls import OpenCall, is_idle, may_accept

MESSAGE_ID = "a2a_message_id"
"""Key in the metadata of an invocation that has the ID which the client gave to its message."""
EXTENSION = "waystation"
"""Key of Waystation's data in metadata."""
RESPONSE = "response"
"""ID of the artifact with the final response."""
ENDED: Mapping[str, TaskState] = {
    "completed": TaskState.TASK_STATE_COMPLETED,
    "cancelled": TaskState.TASK_STATE_CANCELED,
}
"""The states of tasks that have ended. All others are failures."""
REJECTIONS = {"InvalidInput", "UnknownAgent"}
"""Errors of an invocation that has not begun its work."""
REFUSALS = {"SAFETY", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII", "RECITATION", "IMAGE_SAFETY"}
"""Error codes of models that refuse a message."""
TERMINAL = {*ENDED.values(), TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_REJECTED}
INTERRUPTED = {TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED}
MAX_DEPTH = 60
"""Maximum depth of a value in metadata. A message may have 100 levels, and each object uses several."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """The invocation that a task shows."""

    invocation_id: str
    app_key: str
    user_id: str
    session_id: str
    """The context of the task."""

    @property
    def task_id(self) -> str:
        """The ID of the task, which fits into a path."""
        return base64.urlsafe_b64encode(self.invocation_id.encode()).decode().rstrip("=")

    @classmethod
    def of(cls, invocation_id: str) -> "TaskRef | None":
        """Return the reference, or None if no session can have started an invocation with this ID."""
        session, _, number = invocation_id.rpartition("/")
        names = parse_session_id(session) if number.isdecimal() else None
        return cls(invocation_id, *names) if names else None

    @classmethod
    def parse(cls, task_id: str) -> "TaskRef | None":
        """Return the reference that a task ID contains, or None if it contains none."""
        try:
            decoded = base64.b64decode(f"{task_id}{'=' * (-len(task_id) % 4)}", b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            return None
        ref = cls.of(decoded)
        return ref if ref and ref.task_id == task_id else None


def make_task(
    ref: TaskRef,
    log: Log | None,
    calls: Sequence[OpenCall] = (),
    *,
    person: str,
    files: Sequence[Artifact] = (),
    link: str = "",
) -> Task:
    """Return the task that a person sees.

    Args:
        ref: The invocation.
        log: Its log, or None if it has not started.
        calls: Its open calls and those of the agents that it called, for this person.
        person: The subject of the person.
        files: The artifacts of its files.
        link: The address of this server's pages, without the final slash.
    """
    if log is None or log.state.input is None:
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        return Task(id=ref.task_id, context_id=ref.session_id, status=status)
    state, last = find_state(log, calls, person), log.state.outcome.last_said
    message = None
    if state in INTERRUPTED:
        message = describe_calls(ref, log, calls, person, link)
    elif state in TERMINAL and (problem := find_problem(log)):
        message = make_message(ref, f"{log.invocation_id}/problem", [Part(text=problem)])
    is_over = state == TaskState.TASK_STATE_COMPLETED
    final = last if is_over and last is not None and last.content else None
    return Task(
        id=ref.task_id,
        context_id=ref.session_id,
        status=TaskStatus(state=state, message=message, timestamp=find_time(log, calls)),
        artifacts=[*files, *make_response(log, final)],
        history=[each for event in log.state.events if event is not final for each in make_messages(ref, log, event)],
        metadata=ParseDict({EXTENSION: {"invocationId": ref.invocation_id, "agent": log.state.input.agent}}, Struct()),
    )


def find_state(log: Log, calls: Sequence[OpenCall], person: str) -> TaskState:
    """Return the state of a task. A task waits only if nothing else of it is in flight."""
    outcome = log.state.outcome
    if ended := outcome.ended:
        code = outcome.last_said.error_code if ended == "completed" and outcome.last_said else None
        if code in REFUSALS or (outcome.failure and outcome.failure.error_type in REJECTIONS):
            return TaskState.TASK_STATE_REJECTED
        return TaskState.TASK_STATE_FAILED if code else ENDED.get(ended, TaskState.TASK_STATE_FAILED)
    if calls and is_idle(log, calls):
        is_asked = any(may_accept(call, person) for call in calls)
        return TaskState.TASK_STATE_INPUT_REQUIRED if is_asked else TaskState.TASK_STATE_AUTH_REQUIRED
    return TaskState.TASK_STATE_WORKING


def find_problem(log: Log) -> str:
    """Return why an invocation failed, or an empty string."""
    outcome = log.state.outcome
    if outcome.failure:
        return outcome.failure.message
    return (outcome.last_said and (outcome.last_said.error_message or outcome.last_said.error_code)) or ""


def find_time(log: Log, calls: Sequence[OpenCall]) -> datetime:
    """Return when the state of a task last changed, as far as events and calls tell."""
    times = [event.timestamp for event in log.state.events[-1:]] + [call.view.pending.requested_at for call in calls]
    return datetime.fromtimestamp(max(times, default=0.0), UTC)


def describe_calls(ref: TaskRef, log: Log, calls: Sequence[OpenCall], person: str, link: str) -> Message:
    """Return the message about the calls that a task waits for. Its metadata has what an answer needs."""
    lines = [describe_call(call, person) for call in calls]
    id = f"{log.invocation_id}/waits/{len(log.state.events)}"
    details: list[JsonObject] = [format_call(call, link) for call in calls]
    return make_message(ref, id, [Part(text="\n".join(lines))], {"calls": details})


def describe_call(call: OpenCall, person: str) -> str:
    """Return a line about what a call waits for."""
    pending = call.view.pending
    text = pending.title or pending.hint or f"{pending.agent} asks about {pending.tool}."
    return text if may_accept(call, person) else f"{text} Waits for: {', '.join(call.awaited) or 'an approver'}."


def format_call(call: OpenCall, link: str) -> JsonObject:
    """Return a call as the metadata of a task has it."""
    pending = call.view.pending
    policy = pending.policy
    return {
        "call": pending.approval_id,
        **pending.model_dump(
            mode="json", include={"kind", "agent", "tool", "title", "hint", "digest", "question", "deadline"}
        ),
        "args": to_json(pending.args),
        "payload": to_json(pending.payload),
        "responseSchema": to_json(pending.response_schema),
        "actions": list(call.actions),
        "policy": policy.model_dump(mode="json", exclude_defaults=True) if policy else None,
        "approvedBy": list(pending.approved_by),
        "missing": max((policy.quorum if policy else 1) - len(pending.approved_by), 0),
        "approvers": list(call.awaited),
        "link": f"{link}/approvals/{quote(pending.approval_id, safe='')}",
    }


def to_json(value: Any) -> Any:
    """Return a JSON value that a message can contain: the text of one that is too deep, or has too large a number."""
    try:
        ParseDict(value, Value(), max_recursion_depth=MAX_DEPTH)
    except (ParseError, OverflowError):
        return encode(value).decode()
    return value


def make_messages(ref: TaskRef, log: Log, event: Event) -> Iterator[Message]:
    """Yield the messages that an event is in the history of a task."""
    parts = format_parts(event)
    if event.author == "user" and parts:
        started = log.state.input
        own = started.metadata.get(MESSAGE_ID) if event.index == 0 and started else None
        yield make_message(ref, str(own or event.id), parts, role=Role.ROLE_USER)
    elif parts:
        yield make_message(ref, event.id, parts)
    for response in event.function_responses():
        if text := find_reply(log.state.calls.get(response["id"])):
            yield make_message(ref, f"{event.id}/{response['id']}", [Part(text=text)], role=Role.ROLE_USER)


def find_reply(call: CallState | None) -> str:
    """Return the text with which a person has answered a question, or an empty string."""
    response = call.answer.response if call and call.answer and call.answer.action == "respond" else None
    text = response.get("text") if response and set(response) == {"text"} else None
    return text if isinstance(text, str) else ""


def make_response(log: Log, final: Event | None) -> Iterator[Artifact]:
    """Yield the artifact with the final response, if there is one."""
    output = log.state.outcome.output
    if final is not None and output is not None:
        yield Artifact(artifact_id=RESPONSE, name=RESPONSE, parts=[Part(data=ParseDict(to_json(output), Value()))])
    elif final is not None and (parts := format_parts(final)):
        yield Artifact(artifact_id=RESPONSE, name=RESPONSE, parts=parts)


def make_message(
    ref: TaskRef, id: str, parts: Sequence[Part], details: JsonObject | None = None, *, role: Role = Role.ROLE_AGENT
) -> Message:
    """Return a message of a task."""
    metadata = ParseDict({EXTENSION: details}, Struct()) if details else None
    names = {"message_id": id, "task_id": ref.task_id, "context_id": ref.session_id}
    return Message(**names, role=role, parts=parts, metadata=metadata)


def format_parts(event: Event) -> list[Part]:
    """Return the parts of an event that a task shows."""
    return [part for each in (event.content or {}).get("parts") or () if (part := format_part(each))]


def format_part(part: JsonObject) -> Part | None:
    """Return a part of a content of the Gemini API as one of A2A, or None for calls, responses and thoughts."""
    if part.get("thought"):
        return None
    if text := part.get("text"):
        return Part(text=text)
    if data := part.get("inlineData"):
        raw = base64.b64decode(data["data"], b"-_" if set(data["data"]) & {"-", "_"} else None)
        return Part(raw=raw, media_type=data.get("mimeType") or "", filename=data.get("displayName") or "")
    if file := part.get("fileData"):
        name = file.get("displayName") or ""
        return Part(url=file["fileUri"], media_type=file.get("mimeType") or "", filename=name)
    return None


def parse_parts(message: Message) -> JsonObject:
    """Return a message as a content of the Gemini API. Data becomes JSON text."""
    return {"role": "user", "parts": [_parse_part(part) for part in message.parts]}


def _parse_part(part: Part) -> JsonObject:
    kind = {"mimeType": part.media_type or "application/octet-stream"}
    name = {"displayName": part.filename} if part.filename else {}
    match part.WhichOneof("content"):
        case "raw":
            return {"inlineData": {"data": base64.b64encode(part.raw).decode(), **kind, **name}}
        case "url":
            return {"fileData": {"fileUri": part.url, **kind, **name}}
        case "data":
            return {"text": encode(read_data(part)).decode()}
        case _:
            return {"text": part.text}


def read_data(part: Part) -> Any:
    """Return the data of a part. Its numbers are all floating-point, so whole ones are converted to integers."""
    return json.loads(json.dumps(MessageToDict(part.data)), parse_float=_parse_number)


def _parse_number(text: str) -> int | float:
    return int(text[:-2]) if text.endswith(".0") else float(text)


def list_changes(before: Task, after: Task) -> Iterator[TaskStatusUpdateEvent | TaskArtifactUpdateEvent]:
    """Yield the events that lead a reader of a stream from a task to a later version of it."""
    id, context = after.id, after.context_id
    known = {message.message_id for message in before.history}
    for message in after.history:
        if message.message_id not in known and message.role == Role.ROLE_AGENT:
            status = TaskStatus(state=TaskState.TASK_STATE_WORKING, message=message, timestamp=after.status.timestamp)
            yield TaskStatusUpdateEvent(task_id=id, context_id=context, status=status)
    for artifact in after.artifacts:
        if artifact not in before.artifacts:
            yield TaskArtifactUpdateEvent(task_id=id, context_id=context, artifact=artifact, last_chunk=True)
    if (before.status.state, before.status.message) != (after.status.state, after.status.message):
        yield TaskStatusUpdateEvent(task_id=id, context_id=context, status=after.status, metadata=after.metadata)


def cut_history(task: Task, length: int | None) -> Task:
    """Return a task with at most its `length` latest messages."""
    if length is not None and length < len(task.history):
        del task.history[: len(task.history) - max(length, 0)]
    return task
