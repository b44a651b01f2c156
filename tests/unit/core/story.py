"""Words in which tests tell what happened to an invocation: `log_of(said("pay 900"), called("pay", id="fc-1"))`."""

from typing import Any

from waystation.core import (
    Answer,
    AnswerCounted,
    Began,
    Body,
    Call,
    CallLost,
    CallReturned,
    CancelRequested,
    Confirmation,
    DeadlinePassed,
    Ended,
    EventActions,
    Failure,
    InvocationInput,
    JsonObject,
    Log,
    ModelCalled,
    ModelReplied,
    ModelReply,
    ToolOutcome,
    ids,
    parse_ref,
)


def log_of(*happened: Body | list[Body], now: float = 1_000.0) -> Log:
    """Return the log of what happened, a second apart."""
    log = Log("inv")
    for index, bodies in enumerate(happened):
        for body in bodies if isinstance(bodies, list) else [bodies]:
            if isinstance(body, ModelReplied):
                body = ModelReplied(log.state.steps, body.reply)
            log.append(parse_ref(f"{index}"), now + index, body)
    return log


def said(text: str, **fields: Any) -> list[Body]:
    """The user said something, and the model was called."""
    return [Began(InvocationInput(agent="ag", message=text, **fields)), ModelCalled(1)]


def begun(text: str, **fields: Any) -> Body:
    """The user said something."""
    return Began(InvocationInput(agent="ag", message=text, **fields))


def asked_model(number: int = 2) -> Body:
    """The model was called again."""
    return ModelCalled(number)


def replied(text: str) -> Body:
    """The model said something."""
    return ModelReplied(0, ModelReply(content={"role": "model", "parts": [{"text": text}]}))


def called(*names: str, id: str = "fc-1", gated: bool = False, args: JsonObject | None = None, **fields: Any) -> Body:
    """The model called tools, with ids that count up from `id`."""
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


def returned(id: str, response: JsonObject | None = None, *, state: JsonObject | None = None, **fields: Any) -> Body:
    """A tool returned."""
    run = fields.pop("run", 0)
    actions = fields.pop("actions", None) or (EventActions(state_delta=state) if state else None)
    return CallReturned(ToolOutcome(function_call_id=id, response=response, actions=actions, **fields), run)


def lost(id: str, kind: Any = "heartbeat") -> Body:
    """A tool's worker was lost."""
    return CallLost(id, Failure(kind=kind))


def answered(id: str, action: Any = "approve", **fields: Any) -> Body:
    """Somebody answered."""
    return AnswerCounted(id, Answer(function_call_id=id, action=action, **fields))


def rejected(id: str, **fields: Any) -> Body:
    """Somebody said no."""
    return answered(id, "reject", **fields)


def expired(id: str) -> Body:
    """Nobody answered in time."""
    return DeadlinePassed(id)


def cancelled() -> list[Body]:
    """The invocation was cancelled, and ended."""
    return [CancelRequested(), Ended("cancelled")]


def responses(log: Log) -> list[tuple[str, JsonObject]]:
    """Return every response in the log's events, as (call, response)."""
    return [(part["id"], part["response"]) for event in log.state.events for part in event.function_responses()]
