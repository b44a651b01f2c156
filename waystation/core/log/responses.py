"""Build the requests and responses for function calls that events contain.

Requests ask ADK clients for a confirmation or a credential. Most responses here are for calls that did not simply
return: they were rejected, expired, lost, canceled, or answered by a person.
"""

import json
from collections.abc import Mapping, Sequence

from waystation.core import ids
from waystation.core.approval import Answer
from waystation.core.contract import Confirmation, EventActions, InvocationResult, ToolOutcome, texts_of
from waystation.core.errors import NotJson
from waystation.core.log.call import CallState, find_changes
from waystation.core.log.entry import Failure
from waystation.core.payload import MAX_VALUE_BYTES, JsonObject, decode_foreign

REJECTED = "This tool call is rejected."
"""The error that ADK 2.13 reports for a rejected call, word for word."""
REQUEST_CONFIRMATION = "adk_request_confirmation"
REQUEST_CREDENTIAL = "adk_request_credential"
"""ADK's name for the function call that asks a client for a credential. The model never sees these requests."""
UNKNOWN_OUTCOMES = frozenset(("OutcomeUnknown", "Timeout", "EventLoopBlocked", "Cancelled"))
"""The error types of calls that were stopped or lost while their tool may have run."""
UNDECRYPTED = "binary/encrypted"
"""The encoding that Temporal's SDKs name if a worker without a codec receives an encrypted payload."""
DECRYPTION = "`waystation.data_converter()` or a codec: docs/reference/encryption-format.md"
"""The remedy for such a worker."""


def request_id(call: CallState) -> str:
    """Return the ID of the call's confirmation or credential request, as it appears in events."""
    return (ids.credential if call.asked == "credential" else ids.confirmation)(call.id)


def request_part(call: CallState) -> JsonObject:
    """Return the function call that asks ADK clients for a confirmation or a credential, in ADK's format."""
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
    """Return the function response that answers the confirmation or credential request."""
    confirmed, name = answer.action != "reject", REQUEST_CONFIRMATION
    response: JsonObject = {"confirmed": confirmed}
    if call.asked == "credential":
        name, response = REQUEST_CREDENTIAL, {"authorized": confirmed}
    elif answer.confirmation_payload is not None:
        response["payload"] = answer.confirmation_payload
    return {"functionResponse": {"id": request_id(call), "name": name, "response": response}}


def response_part(call: CallState, response: JsonObject, media: Sequence[JsonObject] = ()) -> JsonObject:
    """Return the function response to the call. As in ADK 2.13, any media parts are nested inside the response."""
    body: JsonObject = {"id": call.id, "name": call.name, "response": response}
    return {"functionResponse": {**body, "parts": list(media)} if media else body}


def with_additions(call: CallState, response: JsonObject) -> JsonObject:
    """Return a response with the comments and fields that approvers added, and with their changes to the arguments.

    If the response already has a field of that name, the addition gets the prefix `approver_`.
    """
    added = dict(call.fields)
    if call.comments:
        lines = [f"{name}: {text}" if name and len(call.comments) > 1 else text for name, text in call.comments]
        added["comment"] = "\n".join(lines)
    if call.gate == "passed" and (changes := find_changes(call)):
        added["edited"] = {**({"by": ", ".join(call.edited_by)} if call.edited_by else {}), "args": changes}
    # An addition that the response already contains is not repeated, so that adding them twice changes nothing.
    new = {name: value for name, value in added.items() if name not in response or response[name] != value}
    return response | {f"approver_{name}" if name in response else name: value for name, value in new.items()}


def rejected() -> JsonObject:
    """Return the response to a rejected call."""
    return {"error": REJECTED}


def withdrawn() -> JsonObject:
    """Return the response to a call that an operator canceled."""
    return {"error": "This tool call was cancelled by a person.", "error_type": "Withdrawn"}


def answered(call: CallState, answer: Answer) -> JsonObject:
    """Return the response that an answer provides for a long-running call (see `docs/reference/contract.md`)."""
    status = {"approve": "approved", "reject": "rejected"}.get(answer.action)
    return with_additions(call, {**({"status": status} if status else {}), **(answer.response or {})})


def expired(call: CallState) -> JsonObject:
    """Return the response to a call whose deadline has passed. The response must never read like an approval."""
    return {
        "status": "expired",
        "error": f"Nobody answered the call of `{call.name}` before its deadline; it is not approved.",
        "error_type": "Expired",
    }


def ended(call: CallState) -> JsonObject:
    """Return the response to a call that was still open when its invocation ended."""
    return {"error": f"The invocation ended before `{call.name}` was answered.", "error_type": "Cancelled"}


def over_budget(call: CallState, reason: str) -> JsonObject:
    """Return the response to a call that was not run because the budget does not allow it."""
    return {"error": f"`{call.name}` was not run: {reason}.", "error_type": "BudgetExhausted"}


def lost(call: CallState, failure: Failure) -> ToolOutcome:
    """Return the outcome of a call whose activity or called agent failed, timed out or was canceled."""
    error_type, text = failure.error_type or "Error", failure.message or f"The call of `{call.name}` failed."
    match failure.kind:
        case "heartbeat" | "start_to_close" | "schedule_to_close":
            error_type = "OutcomeUnknown"
            text = (
                f"The worker running `{call.name}` was lost before it reported a result. "
                f"{unknown_effect(failure.attempts, 'the call')}"
            )
        case "schedule_to_start":
            error_type, text = "NotStarted", f"No worker started the call of `{call.name}`; it did not run."
        case "cancelled":
            error_type = "Cancelled"
            text = f"The call of `{call.name}` was cancelled. Whether it took effect is unknown."
        case "error" if call.call.target and error_type == "WorkflowAlreadyStartedError":
            error_type = "OutcomeUnknown"
            text = (
                f"The workflow of `{call.name}` already exists, for example from before a reset. "
                f"{unknown_effect(1, 'the call')}"
            )
        case "error" if call.call.target and (explained := explain_undecrypted(text, call.call.task_queue)):
            text = explained
    return ToolOutcome(
        function_call_id=call.id, response={"error": text, "error_type": error_type}, error_type=error_type
    )


def explain_undecrypted(message: str, task_queue: str | None = None) -> str:
    """Return the cause and the remedy if the error of a plain Temporal worker says that it cannot decrypt its input.

    Return an empty string for any other error.
    """
    worker = f"The worker of task queue {task_queue}" if task_queue else "The worker"
    if UNDECRYPTED in message:
        return f"{worker} cannot decrypt its input; give it {DECRYPTION}"
    if message == "Failed decoding arguments":  # The SDK for Python names the encoding only in the cause.
        return (
            f"{message}. {worker} may be unable to decrypt its input; if payloads are encrypted, give it {DECRYPTION}"
        )
    return ""


def unknown_effect(attempts: int, subject: str = "it") -> str:
    """Return a sentence about a call that will not be tried again although its outcome is unknown."""
    repeated = "it was not repeated" if attempts == 1 else f"it was tried {attempts} times and is not repeated again"
    return f"Whether {subject} took effect is unknown; {repeated}."


def matters(call: CallState) -> bool:
    """Return whether somebody has to know whether a call took effect: it may run only once, or was approved.

    A called agent reports about its own calls. A long-running call still waits for an answer.
    """
    is_guarded = call.call.effect == "once" or call.gate == "passed" or call.call.standing is not None
    return is_guarded and call.call.kind == "function"


def is_unknown(call: CallState, outcome: ToolOutcome) -> bool:
    """Return whether it matters, and is unknown, whether a call took effect."""
    return matters(call) and outcome.error_type in UNKNOWN_OUTCOMES


def found(call: CallState, found: JsonObject) -> JsonObject:
    """Return the response to a call about which an operator stated that it `ran` or was `not_run`."""
    if found["action"] == "ran":
        text = f"An operator found that `{call.name}` took effect. Do not call it again."
        return found.get("response") or {"status": "ran", "message": text}
    text = f"An operator found that `{call.name}` did not take effect."
    return {"error": f"{text} You may call it again.", "error_type": "NotRun"}


def of_child(call: CallState, result: InvocationResult) -> ToolOutcome:
    """Return the outcome of a call to an agent, given the result of the called agent."""
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


def of_target(function_call_id: str, data: bytes) -> ToolOutcome:
    """Return the outcome of a call whose target returned this JSON. Data that cannot be recorded becomes an error."""
    try:
        if len(data) > MAX_VALUE_BYTES:
            raise NotJson("", f"{len(data):,} bytes of JSON (the limit is {MAX_VALUE_BYTES:,})", "return less")
        value = decode_foreign(data)
    except (NotJson, ValueError) as error:
        cause = str(error) if isinstance(error, NotJson) else "it is not JSON."
        text = f"The call ran, but its result cannot be returned to you: {cause}"
        response = {"error": f"{text} Do not call it again for this reason alone.", "error_type": "NotJson"}
        return ToolOutcome(function_call_id=function_call_id, response=response, error_type="NotJson")
    return ToolOutcome(
        function_call_id=function_call_id, response=value if isinstance(value, dict) else {"result": value}
    )


def inherited_state(state: Mapping[str, object]) -> JsonObject:
    """Return the initial state of a called agent. As in ADK 2.13, it excludes temporary and internal keys."""
    return {key: value for key, value in state.items() if not key.startswith(("temp:", "_adk"))}
