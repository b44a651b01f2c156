"""Functions that write a log as a sentence: `log_of(user_message("pay 900"), model_calls("pay", id="fc-1"))`."""

from typing import Any

from waystation.core import ids
from waystation.core.approval import Answer
from waystation.core.contract import Call, Confirmation, EventActions, InvocationInput, ModelReply, ToolOutcome
from waystation.core.log import (
    AnswerCounted,
    Began,
    Body,
    CallLost,
    CallReturned,
    CancelRequested,
    DeadlinePassed,
    Ended,
    Failure,
    Log,
    ModelCalled,
    ModelReplied,
    parse_ref,
)
from waystation.core.payload import JsonObject


def log_of(*happened: Body | list[Body], now: float = 1_000.0) -> Log:
    """Return a log of these entries, with one second between them."""
    log = Log("inv")
    for index, bodies in enumerate(happened):
        for body in bodies if isinstance(bodies, list) else [bodies]:
            if isinstance(body, ModelReplied):
                body = ModelReplied(log.state.steps, body.reply)
            log.append(parse_ref(f"{index}"), now + index, body)
    return log


def user_message(text: str, **fields: Any) -> list[Body]:
    """Begin an invocation with a message, and call the model."""
    return [Began(InvocationInput(agent="ag", message=text, **fields)), ModelCalled(1)]


def invocation_began(text: str, **fields: Any) -> Body:
    """Begin an invocation with a message."""
    return Began(InvocationInput(agent="ag", message=text, **fields))


def model_called(number: int = 2) -> Body:
    """Call the model again."""
    return ModelCalled(number)


def model_replied(text: str) -> Body:
    """Record a text reply of the model."""
    return ModelReplied(0, ModelReply(content={"role": "model", "parts": [{"text": text}]}))


def model_calls(
    *names: str, id: str = "fc-1", gated: bool = False, args: JsonObject | None = None, **fields: Any
) -> Body:
    """Record a reply that calls tools, with IDs that count up from `id`."""
    first = int(id.removeprefix("fc-"))
    made = [ids.function_call(first + index) for index in range(len(names))]
    if gated:
        fields["confirmation"] = Confirmation(hint="Sure?")
    parts = [
        {"functionCall": {"id": call_id, "name": name, "args": args or {}}}
        for call_id, name in zip(made, names, strict=True)
    ]
    calls = tuple(Call(id=call_id, **fields) for call_id in made)
    return ModelReplied(0, ModelReply(content={"role": "model", "parts": parts}, calls=calls))


def tool_returned(
    id: str, response: JsonObject | None = None, *, state: JsonObject | None = None, **fields: Any
) -> Body:
    """Record the result of a tool."""
    run = fields.pop("run", 0)
    actions = fields.pop("actions", None) or (EventActions(state_delta=state) if state else None)
    return CallReturned(ToolOutcome(function_call_id=id, response=response, actions=actions, **fields), run)


def tool_lost(id: str, kind: Any = "heartbeat") -> Body:
    """Record that the worker of a tool was lost."""
    return CallLost(id, Failure(kind=kind))


def answered(id: str, action: Any = "approve", **fields: Any) -> Body:
    """Record an answer of an approver."""
    return AnswerCounted(id, Answer(function_call_id=id, action=action, **fields))


def rejected(id: str, **fields: Any) -> Body:
    """Record a rejection."""
    return answered(id, "reject", **fields)


def expired(id: str) -> Body:
    """Record that the deadline passed without an answer."""
    return DeadlinePassed(id)


def cancelled() -> list[Body]:
    """Record that the invocation was cancelled and ended."""
    return [CancelRequested(), Ended("cancelled")]


def responses(log: Log) -> list[tuple[str, JsonObject]]:
    """Return every response in the log's events, as (call ID, response)."""
    return [(part["id"], part["response"]) for event in log.state.events for part in event.function_responses()]
