"""What the model reads when a call did not simply return: refused, expired, lost, cancelled, answered by a person."""

import json
from collections.abc import Mapping

from waystation.core.activity_io import ToolOutcome
from waystation.core.approval.answer import Answer
from waystation.core.call import CallState
from waystation.core.conversation.event import EventActions, texts_of
from waystation.core.log.entry import Failure
from waystation.core.payload import JsonObject
from waystation.core.wire import InvocationResult

REJECTED = "This tool call is rejected."
"""ADK's wire literal, see adk-semantics 2.1."""


def rejected(answer: Answer) -> JsonObject:
    """Return the response to a call whose confirmation was refused."""
    return {"error": REJECTED, **({"comment": answer.comment} if answer.comment else {})}


def withdrawn(answer: Answer) -> JsonObject:
    """Return the response to a call that an operator closed."""
    said = {"error": "This tool call was cancelled by a person.", "error_type": "Withdrawn"}
    return {**said, **({"comment": answer.comment} if answer.comment else {})}


def answered(answer: Answer) -> JsonObject:
    """Return the response that an answer gives to a long-running call; see the wire contract."""
    match answer.action:
        case "approve" | "reject":
            status = "approved" if answer.action == "approve" else "rejected"
            comment = {"comment": answer.comment} if answer.comment else {}
            return {"status": status, **(answer.response or {}), **comment}
        case _:
            return dict(answer.response or {})


def expired(call: CallState) -> JsonObject:
    """Return the response to a call that nobody answered in time. It never reads as an approval."""
    return {
        "status": "expired",
        "error": f"Nobody answered the call of `{call.name}` before its deadline; it is not approved.",
        "error_type": "Expired",
    }


def sealed(call: CallState) -> JsonObject:
    """Return the response to a call that was still open when its invocation ended."""
    return {"error": f"The invocation ended before `{call.name}` was answered.", "error_type": "Cancelled"}


def over_budget(call: CallState, reason: str) -> JsonObject:
    """Return the response to a call for which the budget has no room."""
    return {"error": f"`{call.name}` was not run: {reason}.", "error_type": "BudgetExhausted"}


def lost(call: CallState, failure: Failure) -> ToolOutcome:
    """Return the outcome of a call whose activity or child gave no report."""
    text, error_type = _loss(call, failure)
    return ToolOutcome(
        function_call_id=call.id, response={"error": text, "error_type": error_type}, error_type=error_type
    )


def _loss(call: CallState, failure: Failure) -> tuple[str, str]:
    name = f"`{call.name}`"
    match failure.kind:
        case "heartbeat" | "start_to_close" | "schedule_to_close":
            return (
                f"The worker that ran {name} was lost before it reported. Whether the call took effect is unknown; "
                "it was not repeated.",
                "OutcomeUnknown",
            )
        case "schedule_to_start":
            return f"No worker took up the call of {name}; it did not run.", "NotStarted"
        case "cancelled":
            return f"The call of {name} was cancelled. Whether it took effect is unknown.", "Cancelled"
        case "error":
            return failure.message or f"The call of {name} failed.", failure.error_type or "Error"


def of_child(call: CallState, result: InvocationResult) -> ToolOutcome:
    """Return the outcome of a call of an agent. Sources: adk-semantics 4.3 and 4.5."""
    text = "\n".join(texts_of(result.content)) if result.content else result.text
    if not text and result.status == "stopped":
        text = result.reason or ""
    shown = json.dumps(result.output, ensure_ascii=False) if result.output is not None else text
    return ToolOutcome(
        function_call_id=call.id,
        response=result.output if result.output is not None else {"result": text},
        actions=EventActions(
            state_delta=result.state_delta,
            removed_keys=result.removed_keys,
            artifact_delta=result.artifact_delta,
            skip_summarization=True if call.call.skip_summarization else None,
        ),
        beside=({"text": shown},) if call.call.skip_summarization and shown else (),
    )


def inherited_state(state: Mapping[str, object]) -> JsonObject:
    """Return the state with which a called agent starts. Source: adk-semantics 4.2."""
    return {key: value for key, value in state.items() if not key.startswith(("temp:", "_adk"))}
