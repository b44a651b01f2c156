"""Requests and responses of function calls, as events hold them.

Requests ask ADK clients for a confirmation or a credential. Responses tell the model the result of a call that did not
simply return: rejected, expired, lost, cancelled, or answered by a person.
"""

import json
from collections.abc import Mapping, Sequence

from waystation.core import ids
from waystation.core.activity_io import Confirmation, ToolOutcome
from waystation.core.approval.answer import Answer
from waystation.core.call import CallState
from waystation.core.conversation.event import EventActions, texts_of
from waystation.core.log.entry import Failure
from waystation.core.payload import JsonObject
from waystation.core.wire import InvocationResult

REJECTED = "This tool call is rejected."
"""ADK's wire literal, see adk-semantics 2.1."""
REQUEST_CONFIRMATION = "adk_request_confirmation"
REQUEST_CREDENTIAL = "adk_request_credential"
"""ADK's names of the requests that clients receive; a model never sees them. Source: adk-semantics 2.4."""


def request_id(call: CallState) -> str:
    """Return the id of the request for a confirmation or a credential, as it appears in events."""
    return (ids.credential if call.asked == "credential" else ids.confirmation)(call.id)


def request_part(call: CallState) -> JsonObject:
    """Return the function call that asks ADK clients. Sources: adk-semantics 2.1 and 11.1."""
    asks = call.asks or Confirmation()
    if call.asked == "credential":
        args: JsonObject = {"functionCallId": call.id, "authConfig": asks.payload}
        return {"functionCall": {"id": request_id(call), "name": REQUEST_CREDENTIAL, "args": args}}
    payload = {} if asks.payload is None else {"payload": asks.payload}
    args = {
        "originalFunctionCall": {"id": call.id, "args": call.args, "name": call.name},
        "toolConfirmation": {"hint": asks.hint, "confirmed": False, **payload},
    }
    return {"functionCall": {"id": request_id(call), "name": REQUEST_CONFIRMATION, "args": args}}


def request_response_part(call: CallState, answer: Answer) -> JsonObject:
    """Return the function response to the request."""
    confirmed, name = answer.action != "reject", REQUEST_CONFIRMATION
    response: JsonObject = {"confirmed": confirmed}
    if call.asked == "credential":
        name, response = REQUEST_CREDENTIAL, {"authorized": confirmed}
    elif answer.response is not None:
        response["payload"] = answer.response
    return {"functionResponse": {"id": request_id(call), "name": name, "response": response}}


def response_part(call: CallState, response: JsonObject, media: Sequence[JsonObject] = ()) -> JsonObject:
    """Return the function response to the call, media parts inside it. Source: adk-semantics 1.5."""
    body: JsonObject = {"id": call.id, "name": call.name, "response": response}
    return {"functionResponse": {**body, "parts": list(media)} if media else body}


def rejected(answer: Answer) -> JsonObject:
    """Return the response to a rejected call."""
    return {"error": REJECTED, **_comment(answer)}


def withdrawn(answer: Answer) -> JsonObject:
    """Return the response to a call that an operator closed."""
    return {"error": "This tool call was cancelled by a person.", "error_type": "Withdrawn", **_comment(answer)}


def answered(answer: Answer) -> JsonObject:
    """Return the response that an answer gives to a long-running call; see the wire contract."""
    status = {"approve": "approved", "reject": "rejected"}.get(answer.action)
    return {"status": status, **(answer.response or {}), **_comment(answer)} if status else dict(answer.response or {})


def _comment(answer: Answer) -> JsonObject:
    return {"comment": answer.comment} if answer.comment else {}


def expired(call: CallState) -> JsonObject:
    """Return the response to a call whose deadline passed. It must never read as an approval."""
    return {
        "status": "expired",
        "error": f"Nobody answered the call of `{call.name}` before its deadline; it is not approved.",
        "error_type": "Expired",
    }


def ended(call: CallState) -> JsonObject:
    """Return the response to a call that was still open when its invocation ended."""
    return {"error": f"The invocation ended before `{call.name}` was answered.", "error_type": "Cancelled"}


def over_budget(call: CallState, reason: str) -> JsonObject:
    """Return the response to a call for which the budget has no room."""
    return {"error": f"`{call.name}` was not run: {reason}.", "error_type": "BudgetExhausted"}


def lost(call: CallState, failure: Failure) -> ToolOutcome:
    """Return the outcome of a call whose activity or called agent failed, timed out or was cancelled."""
    error_type, text = failure.error_type or "Error", failure.message or f"The call of `{call.name}` failed."
    match failure.kind:
        case "heartbeat" | "start_to_close" | "schedule_to_close":
            error_type = "OutcomeUnknown"
            text = (
                f"The worker that ran `{call.name}` was lost before it reported. Whether the call took effect is "
                "unknown; it was not repeated."
            )
        case "schedule_to_start":
            error_type, text = "NotStarted", f"No worker started the call of `{call.name}`; it did not run."
        case "cancelled":
            error_type = "Cancelled"
            text = f"The call of `{call.name}` was cancelled. Whether it took effect is unknown."
    return ToolOutcome(
        function_call_id=call.id, response={"error": text, "error_type": error_type}, error_type=error_type
    )


def of_child(call: CallState, result: InvocationResult) -> ToolOutcome:
    """Return the outcome of a called agent. Sources: adk-semantics 4.3 and 4.5."""
    text = "\n".join(texts_of(result.content)) if result.content else result.text
    if not text and result.status == "stopped":
        text = result.reason or ""
    visible = json.dumps(result.output, ensure_ascii=False) if result.output is not None else text
    return ToolOutcome(
        function_call_id=call.id,
        response=result.output if result.output is not None else {"result": text},
        actions=EventActions(
            state_delta=result.state_delta,
            removed_keys=result.removed_keys,
            artifact_delta=result.artifact_delta,
            skip_summarization=True if call.call.skip_summarization else None,
        ),
        beside=({"text": visible},) if call.call.skip_summarization and visible else (),
    )


def inherited_state(state: Mapping[str, object]) -> JsonObject:
    """Return the initial state of a called agent. Source: adk-semantics 4.2."""
    return {key: value for key, value in state.items() if not key.startswith(("temp:", "_adk"))}
