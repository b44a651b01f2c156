"""For any result or exception of a tool, its side effect happens once and the model receives an outcome."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.agents import Gate
from tests.server.conftest import Serve
from tests.steps import catch_failure, start_and_finish, tool_responses
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext

# Every value is in tests/unit/tools/test_results.py.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "33 MB": (
        lambda: "x" * 33_000_000,
        "the value is 33,000,018 bytes of JSON (the limit is 32,000,000), which cannot be recorded; return less, "
        "or save it as an artifact and return its name",
    ),
}
"""Values that cannot be recorded, and the error for the model."""


def worker_of(effects: list[int], value: Callable[[], Any], **settings: Any) -> tuple[Agent, ScriptedModel]:
    """Return an agent whose tool has a side effect and then returns `value`, and its model."""

    def work() -> Any:
        effects.append(1)
        return value()

    model = ScriptedModel(calls(("work", {})), says("Done."))
    return Agent(name="worker", model=model, tools=[FunctionTool(work, **settings)]), model


@pytest.mark.parametrize("form", REFUSED)
async def test_a_result_that_cannot_be_recorded_is_reported_and_the_tool_runs_once(serve: Serve, form: str) -> None:
    """The model receives an error that says that the tool ran."""
    effects: list[int] = []
    value, problem = REFUSED[form]
    agent, model = worker_of(effects, value)
    async with serve(agent) as env:
        result = await env.client.run("worker", "work")
        assert (result.status, result.text, effects) == ("completed", "Done.", [1])
        [response] = tool_responses(model.requests[1])
        assert response["error"] == (
            f"The tool ran, but its result cannot be returned to you: {problem}. "
            "Do not call it again for this reason alone."
        )


def raising(error: Callable[[], BaseException]) -> Callable[[], Any]:
    """Return a function that raises a new exception each time."""

    def fail() -> Any:
        raise error()

    return fail


async def test_an_exception_may_end_the_invocation(serve: Serve) -> None:
    """With `on_error="raise"` the invocation fails as in ADK: with the exception's name, without its text."""
    effects: list[int] = []
    agent, model = worker_of(effects, raising(lambda: ValueError("account 12 has no money")), on_error="raise")
    async with serve(agent) as env:
        invocation = await env.client.start("worker", "work")
        error = await catch_failure(invocation)
        assert (error.type, error.message) == ("ValueError", "The tool 'work' raised.")
        assert (effects, len(model.requests)) == ([1], 1)
        last = (await invocation.log()).state.events[-1]
        assert (last.error_code, last.content) == ("ValueError", None)


async def test_a_fatal_exception_stops_siblings_and_closes_pending_calls(serve: Serve) -> None:
    """The invocation fails although another call waits for approval and a third one runs."""
    gate, stopped = Gate(), list[str]()

    async def slow() -> None:
        try:
            await gate.passed()
        finally:
            stopped.append("slow")

    async def fail() -> None:
        await gate.reached()
        raise ValueError("no")

    def ask() -> None:
        """Wait for an answer."""

    model = ScriptedModel(calls(("slow", {}), ("ask", {}), ("fail", {})))
    tools = [slow, LongRunningFunctionTool(ask), FunctionTool(fail, on_error="raise")]
    async with serve(Agent(name="worker", model=model, tools=tools)) as env:
        invocation = await env.client.start("worker", "work")
        assert (await catch_failure(invocation)).type == "ValueError"
        assert (await invocation.log()).state.pending() == []
        sealed = {
            part["id"]: part["response"]
            for e in (await invocation.log()).state.events
            for part in e.function_responses()
        }
        assert sealed["fc-2"] == {
            "error": "The invocation ended before `ask` was answered.",
            "error_type": "Cancelled",
        }


async def test_a_call_is_retried_with_one_idempotency_key(serve: Serve) -> None:
    """Two exceptions and a success are three attempts with one key and one response."""
    attempts: list[tuple[int, str]] = []

    def pay(tool_context: ToolContext) -> str:
        attempts.append((tool_context.attempt, tool_context.idempotency_key))
        if len(attempts) < 3:
            raise ConnectionError("bank is busy")
        return "paid"

    model = ScriptedModel(calls(("pay", {})), says("Paid."))
    async with serve(Agent(name="payer", model=model, tools=[FunctionTool(pay, retries=2)])) as env:
        result = await env.client.run("payer", "pay", id="retried")
        assert result.text == "Paid."
        assert attempts == [(1, "retried/fc-1"), (2, "retried/fc-1"), (3, "retried/fc-1")]
        assert tool_responses(model.requests[1]) == [{"result": "paid"}]


async def test_the_last_exception_is_reported_after_all_retries(serve: Serve) -> None:
    """After one retry the model receives the last exception."""
    effects: list[int] = []
    agent, model = worker_of(effects, raising(lambda: ConnectionError("bank is busy")), retries=1)
    async with serve(agent) as env:
        await env.client.run("worker", "work")
        assert effects == [1, 1]
        assert tool_responses(model.requests[1]) == [{"error": "bank is busy", "error_type": "ConnectionError"}]


async def test_a_result_enters_the_history_once(serve: Serve) -> None:
    """Model calls refer to results: ten of 0.9 MB make a history of less than 10 MB."""
    model = ScriptedModel(*[calls(("work", {})) for _ in range(10)], says("Done."))

    def work() -> str:
        return "x" * 900_000

    # Cached, because each step of an uncached one reads all of it anew.
    async with serve(Agent(name="worker", model=model, tools=[work]), max_cached_workflows=10) as env:
        invocation = await start_and_finish(env.client.start("worker", "work"))
        assert sum(event.ByteSize() for event in (await invocation.history()).events) < 10_000_000
