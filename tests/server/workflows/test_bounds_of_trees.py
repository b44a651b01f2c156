"""Endless trees of agents end at the budget, and each step of a long one costs the same."""

import json
from typing import Any

from tests.server.conftest import Serve
from tests.steps import run
from waystation.agents import Agent, BaseAgent, LoopAgent, ParallelAgent
from waystation.client.agent_client import Invocation
from waystation.core.budget import Budget
from waystation.models import LlmResponse
from waystation.testing import FunctionModel, calls, says

ROUNDS = 40


def note(text: str) -> str:
    """Note something."""
    return text


def always(name: str, reply: LlmResponse, **fields: Any) -> Agent:
    """Return an agent that repeats one reply."""
    return Agent(name=name, model=FunctionModel(lambda request: reply), **fields)


async def scheduled(invocation: Invocation) -> list[str]:
    """Return the names of the agents with scheduled model activities, in order."""
    attributes = [e.activity_task_scheduled_event_attributes for e in (await invocation.history()).events]
    return [
        json.loads(each.input.payloads[0].data)["agent"]
        for each in attributes
        if each.activity_type.name == "call_model"
    ]


async def test_a_loop_without_a_limit_ends_at_the_budget(serve: Serve) -> None:
    """The result has the last text and the reason."""
    loop = LoopAgent(name="loop", sub_agents=[always("a", says("more")), always("b", says("and more"))])
    async with serve(loop) as env:
        invocation = await env.client.start("loop", "go", budget=Budget(max_llm_calls=7))
        result = await invocation.result()
        assert await scheduled(invocation) == ["loop", "a", "b", "a", "b", "a", "b", "a"]
    assert (result.status, result.reason, result.text) == (
        "stopped",
        "max_llm_calls: the limit of 7 model calls is used up",
        "more",
    )


async def test_endless_transfers_end_at_the_budget(serve: Serve) -> None:
    """No other limit applies to transfers."""
    there = calls(("transfer_to_agent", {"agent_name": "pong"}))
    back = calls(("transfer_to_agent", {"agent_name": "ping"}))
    ping = always("ping", there, sub_agents=[always("pong", back)])
    async with serve(ping) as env:
        invocation = await env.client.start("ping", "go", budget=Budget(max_llm_calls=9))
        result = await invocation.result()
        assert await scheduled(invocation) == ["ping", "pong"] * 4 + ["ping"]
    assert (result.status, result.reason) == ("stopped", "max_llm_calls: the limit of 9 model calls is used up")


async def test_parallel_agents_share_the_budget_of_model_calls(serve: Serve) -> None:
    """Calls in flight count: eight agents that start together do not each take the last call."""
    limit = 5
    agents: list[BaseAgent] = [always(f"a{number}", says("here")) for number in range(8)]
    async with serve(ParallelAgent(name="all", sub_agents=agents)) as env:
        invocation = await env.client.start("all", "go", budget=Budget(max_llm_calls=limit))
        result = await invocation.result()
        scheduled_agents = await scheduled(invocation)
    assert scheduled_agents[:1] == ["all"]
    assert len(scheduled_agents) - 1 <= limit
    assert (result.status, result.reason) == ("stopped", f"max_llm_calls: the limit of {limit} model calls is used up")


async def test_a_budget_that_is_just_enough_is_enough(serve: Serve) -> None:
    """A sufficient budget is enough for parallel agents, too."""
    agents: list[BaseAgent] = [always(f"a{number}", says("here")) for number in range(8)]
    result = await run(serve(ParallelAgent(name="all", sub_agents=agents)), "all", "go", budget=Budget(max_llm_calls=8))
    assert (result.status, result.reason) == ("completed", None)
