"""Invocations that outgrow a history: they go on in further runs, and nobody notices."""

from typing import Any

from tests.conftest import Serve
from tools import ToolContext
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.wire import WORKFLOW
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, calls, responses, says

CUT_AFTER = 20


def add(number: int, tool_context: ToolContext) -> dict[str, int]:
    """Add a number to the sum."""
    tool_context.state["sum"] = tool_context.state.get("sum", 0) + number
    return {"sum": tool_context.state["sum"]}


def ask(what: str) -> dict[str, str]:
    """Ask somebody."""
    return {"status": "asked"}


async def begun(env: AgentEnvironment, agent: str, **given: Any) -> Invocation:
    """Start an invocation whose runs are cut after a few events."""
    handle = await env.client.temporal.start_workflow(
        WORKFLOW,
        {"agent": agent, "message": "go", "cut_after": CUT_AFTER, **given},
        id=f"{agent}-{env.client.task_queue}",
        task_queue=env.client.task_queue,
    )
    return Invocation(env.client, handle)


def counting(steps: int) -> FunctionModel:
    """A model that calls `add` so many times, and says what it was told last."""

    def act(request: LlmRequest) -> LlmResponse:
        told = responses(request)
        if len(told) < steps:
            return calls(("add", {"number": len(told) + 1}))
        return says(f"told {len(told)} times: {told[-1][1]['sum']}")

    return FunctionModel(act)


async def test_an_invocation_goes_on_in_further_runs(serve: Serve) -> None:
    """The model sees all that was said, the state is the sum of all deltas, and readers see one invocation."""
    async with serve(Agent(name="adder", model=counting(8), tools=[add])) as env:
        invocation = await begun(env, "adder", state={"base": 1})
        result = await invocation.result()
        assert (result.text, result.state_delta) == ("told 8 times: 36", {"sum": 36})
        assert len(await invocation.histories()) > 2
        log = await invocation.log()
        assert [event.id.rpartition("/e")[2] for event in log.events] == [str(n) for n in range(1, 19)]
        assert log.result() == result
        followed = [event.id async for event in invocation.events()]
        assert followed == [event.id for event in log.events]
