"""The contents of a request: the CPU time to add a step to an invocation of any length, without a server."""

import time

from benchmarks.comparison import Plan
from benchmarks.table import Row
from waystation.activities.model_call.conversion import TypedRequest
from waystation.core.contract import Call, InvocationInput, ModelReply, ToolOutcome
from waystation.core.conversation import prompt
from waystation.core.log import (
    Began,
    CallRef,
    CallReturned,
    Log,
    ModelCalled,
    ModelCallRef,
    ModelReplied,
    ModelReplyRef,
    parse_ref,
)
from waystation.models import LlmRequest

AGENT = "bench_agent"
EVENTS = (10, 1_000, 10_000)
SIZE = 1_800


async def prompts(plan: Plan) -> list[Row]:
    """Measure requests with a conversation of some number of events, with and without a callback."""
    logs = {events: _log(events) for events in EVENTS}
    plain = {events: list[float]() for events in EVENTS}
    typed = {events: list[float]() for events in EVENTS}
    for _ in range(10 * plan.pairs):
        for events, log in logs.items():
            _add_step(log)
            started = time.process_time_ns()
            contents = prompt.contents(log)
            built = time.process_time_ns()
            TypedRequest(LlmRequest(model="m", contents=contents), {}).plain()
            plain[events].append((built - started) / 1e6)
            typed[events].append((time.process_time_ns() - built) / 1e6)
    return [
        Row(name=f"{name} at {events:,} events", samples=samples[events], unit="ms", goal=goal)
        for events in EVENTS
        for name, samples, goal in (
            ("contents of a request", plain, 0.5),
            ("… and with a callback around the model, in addition", typed, 4.0),
        )
    ]


def _log(events: int) -> Log:
    """Return the log of an invocation with that many events, including the user's message."""
    log = Log("bench")
    log.append(parse_ref("start"), 0.0, Began(InvocationInput(agent=AGENT, message="go")))
    while len(log.state.events) < events:
        _add_step(log)
    prompt.contents(log)
    return log


def _add_step(log: Log) -> None:
    """Append a model call, its reply, which calls a tool, and the tool's result."""
    number = log.state.steps + 1
    call = f"fc-{number}"
    part = {"functionCall": {"name": "lookup", "args": {"size": SIZE}, "id": call}}
    reply = ModelReply(content={"role": "model", "parts": [part]}, calls=(Call(id=call),))
    outcome = ToolOutcome(function_call_id=call, response={"result": "r" * SIZE})
    log.append(ModelCallRef(number), 0.0, ModelCalled(number))
    log.append(ModelReplyRef(number), 0.0, ModelReplied(number, reply))
    log.append(CallRef(call), 0.0, CallReturned(outcome))
