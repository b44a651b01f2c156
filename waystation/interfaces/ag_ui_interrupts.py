"""Waiting calls as interrupts and activities of AG-UI, and the answers to interrupts as answers to calls. Pure."""

import json
from datetime import UTC, datetime
from typing import Any

from ag_ui.core import ActivityMessage, Interrupt, ResumeEntry, TextPart, ToolMessage
from pydantic import Field, ValidationError

from waystation.core.actions import ACTIONS, Action
from waystation.core.approval import PendingCall
from waystation.core.errors import DigestMismatch, InvalidAnswer
from waystation.core.log import CallState
from waystation.core.payload import JsonObject, describe_faults
from waystation.interfaces.open_calls import OpenCall
from waystation.presentation import words
from waystation.web.call_api import AnswerFields, Shown
from waystation.web.typed_routes import Body

AWAITED = "waystation:awaited"
"""The type of an activity about a call that waits for other people."""
REASONS = {"confirmation": "tool_call", "long_running": "input_required"}
ABANDONED = "Abandoned without an answer."


class ResumePayload(Body):
    """The answer to an interrupt."""

    approved: bool | None = Field(default=None, strict=True)
    """False rejects the call. A response alone also counts as consent."""
    edited_args: JsonObject | None = Field(default=None, alias="editedArgs")
    response: JsonObject | None = None
    payload: Any = None
    comment: str | None = None


def may_accept(call: OpenCall, person: str) -> bool:
    """Return whether a person can let a call continue now. Those who have approved it already wait for others."""
    is_able = any(ACTIONS[name].accepts and ACTIONS[name].listable for name in call.actions)
    return is_able and not call.view.unread and person not in call.view.pending.approved_by


def make_interrupt(
    call: OpenCall, *, tool_call_id: str, subagent: str | None, link: str, problem: str = ""
) -> Interrupt:
    """Return the interrupt for a call that this person may answer. `problem` is why an answer was refused."""
    pending = call.view.pending
    return Interrupt(
        id=pending.approval_id,
        reason=REASONS.get(pending.kind, f"waystation:{pending.kind}"),
        message=pending.title or words.hint(pending) or f"{pending.agent} waits for an answer about {pending.tool}.",
        tool_call_id=tool_call_id,
        subagent_run_id=subagent,
        response_schema=make_schema(call),
        expires_at=_format_time(pending.deadline),
        metadata={
            "digest": pending.digest,
            "question": pending.question,
            "agent": pending.agent,
            "tool": pending.tool,
            "args": pending.args,
            "kind": pending.kind,
            "payload": pending.payload,
            "policy": pending.policy.model_dump(mode="json", exclude_defaults=True) if pending.policy else None,
            **_describe_progress(call),
            "link": link,
            **({"problem": problem} if problem else {}),
        },
    )


def make_schema(call: OpenCall) -> JsonObject:
    """Return the schema of the payloads that this person may answer with. It offers nothing that the call refuses."""
    fields: JsonObject = {"comment": {"type": "string"}}
    if {"approve", "reject"} & set(call.actions):
        fields["approved"] = {"type": "boolean"}
    if "edit" in call.actions:
        fields["editedArgs"] = {"type": "object", "description": "All arguments of the call, not only changed ones."}
    pending = call.view.pending
    if pending.kind == "confirmation" and pending.payload is not None:
        fields["payload"] = {"default": pending.payload}
    if "respond" in call.actions:
        fields["response"] = pending.response_schema or {"type": "object"}
    elif pending.kind != "confirmation":
        fields["response"] = {"type": "object"}
    required = [["approved"]] if "respond" not in call.actions else [["response"], ["approved"]]
    return {
        "type": "object",
        "properties": fields,
        "anyOf": [{"required": names} for names in required],
        "additionalProperties": False,
    }


def make_wait(call: OpenCall, *, tool_call_id: str, link: str) -> ActivityMessage:
    """Return the activity for a call that waits for others."""
    pending = call.view.pending
    content = {
        "status": "waiting",
        "toolCallId": tool_call_id,
        "agent": pending.agent,
        "tool": pending.tool,
        "title": pending.title,
        **_describe_progress(call),
        "expiresAt": _format_time(pending.deadline),
        "link": link,
    }
    return ActivityMessage(id=f"{pending.approval_id}/wait", activity_type=AWAITED, content=content)


def make_closed(wait: ActivityMessage) -> ActivityMessage:
    """Return the activity for a call that waits no longer."""
    return wait.model_copy(update={"content": {**wait.content, "status": "closed"}})


def parse_answer(entry: ResumeEntry, call: PendingCall) -> AnswerFields:
    """Return the answer that an entry of a resume gives to a call.

    Raises:
        InvalidAnswer: The payload has another form than the schema of the interrupt.
    """
    if entry.status == "cancelled":
        return AnswerFields(action="reject", comment=ABANDONED)
    try:
        payload = ResumePayload.model_validate(entry.payload)
    except ValidationError as error:
        raise InvalidAnswer(f"The payload does not match `responseSchema`: {describe_faults(error)}.") from None
    fields = {"comment": payload.comment, "response": payload.response, "payload": payload.payload}
    if payload.approved is False:
        return AnswerFields(action="reject", **fields)
    if call.kind == "long_running" and payload.response is not None:
        return AnswerFields(action="respond", **fields)
    if payload.approved is None:
        raise InvalidAnswer("The payload lacks `approved`, which must be true or false.")
    if payload.edited_args is not None:
        return AnswerFields(action="edit", args=payload.edited_args, **fields)
    return AnswerFields(action="approve", **fields)


def parse_result(message: ToolMessage) -> AnswerFields:
    """Return the answer that the result of a tool gives, which the client has run."""
    if isinstance(message.content, str):
        text = message.content
    else:
        text = "".join(part.text for part in message.content if isinstance(part, TextPart))
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    response = value if isinstance(value, dict) else {"result": value}
    return AnswerFields(action="respond", response={**response, "error": message.error} if message.error else response)


def parse_shown(metadata: JsonObject | None, state: CallState, action: Action) -> Shown:
    """Return the version of a call that an answer is for, as the client repeats it from the metadata.

    A client that repeats nothing may have seen the first version, and asked its person about the first question.

    Raises:
        DigestMismatch: The call has changed since.
        InvalidAnswer: The metadata is invalid.
    """
    given = {name: metadata[name] for name in Shown.model_fields if name in metadata} if metadata else {}
    if not given.get("digest") and (state.waits > 1 or state.requested is not None):
        raise DigestMismatch(
            "The call has changed since it first waited. Repeat `digest` and `question` of its metadata."
        )
    try:
        return Shown.model_validate(given)
    except ValidationError as error:
        raise InvalidAnswer(f"The metadata is invalid: {describe_faults(error)}.") from None


def _describe_progress(call: OpenCall) -> JsonObject:
    pending = call.view.pending
    return {
        "approvers": list(call.awaited),
        "quorum": pending.policy.quorum if pending.policy else 1,
        "approvedBy": list(pending.approved_by),
        "claimedBy": pending.claimed_by,
    }


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
