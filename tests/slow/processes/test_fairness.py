"""Tenants share the workers fairly, by the order in which their model calls run."""

from pathlib import Path
from typing import Any

import pytest

from waystation.agents import Agent
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, latest_turn, says

FLOOD, CALLS, QUEUE = 40, 4, "fairness"


@pytest.mark.parametrize("names", [{"tenant": "globex"}, {"user_id": "gus"}], ids=["tenant", "user"])
async def test_a_flood_does_not_delay_other_tenants_or_users(tmp_path: Path, names: dict[str, Any]) -> None:
    """Calls that arrive behind a backlog run in turns with it, instead of after it."""
    order: list[str] = []

    def reply(request: LlmRequest) -> LlmResponse:
        order.append(latest_turn(request)[0])
        return says("ok")

    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue=QUEUE)
        flood: dict[str, Any] = {name: "acme" for name in names}
        started = [await client.start("clerk", "flood", **flood) for _ in range(FLOOD)]
        started += [await client.start("clerk", "late", **names) for _ in range(CALLS)]
        one_at_a_time: Any = {"max_concurrent_activities": 1, "max_concurrent_workflow_tasks": 2}
        agent = Agent(name="clerk", model=FunctionModel(reply))
        async with AgentEnvironment(agent, server=server, store=tmp_path, task_queue=QUEUE, **one_at_a_time):
            for invocation in started:
                await invocation.result()
    assert max(place for place, text in enumerate(order) if text == "late") < FLOOD // 2
