"""Conversations whose messages follow one another at once, between two server processes."""

import os
from pathlib import Path

import pytest

from tests.server.conftest import server_at
from tests.server.workflows.outside import waiting
from tests.tiers import SERVER_ADDRESS, find_cluster
from waystation.agents import Agent
from waystation.models import LlmRequest
from waystation.replay import replay
from waystation.testing import FunctionModel, calls, says, serving
from waystation.testing.models import Reply, latest_turn
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

pytestmark = [
    pytest.mark.skipif(SERVER_ADDRESS not in os.environ, reason="runs with `make test-cluster`"),
    pytest.mark.timeout(900),
]
MESSAGES = 120
"""So many that some arrive before the server has reported the end of the turn before them to their session."""


def count(tool_context: ToolContext) -> dict[str, int]:
    """Count the turns of the session and those of the user."""
    counts = {key: tool_context.state.get(key, 0) + 1 for key in ("turns", "user:turns")}
    tool_context.state.update(counts)
    return counts


@pytest.mark.parametrize("asks", [True, False])
async def test_each_message_knows_of_the_turn_before_it(tmp_path: Path, asks: bool) -> None:
    """Each is sent as soon as there is a result. It finds that turn's state and last event, and is accepted."""
    preceding: list[str] = []

    def clerk(request: LlmRequest) -> Reply:
        if answered := latest_turn(request)[1]:
            return says(f"{answered[-1][1]}")
        texts = [part["text"] for content in request.contents for part in content["parts"] if "text" in part]
        preceding.append(["", *texts][-2])
        return calls(("count", {}))

    agent = Agent(name="clerk", model=FunctionModel(clerk), tools=[FunctionTool(count, require_confirmation=asks)])
    server = server_at(find_cluster() or "")
    async with serving(agent, server=server, store=tmp_path, max_cached_workflows=10) as env:
        session = env.client.session(agent="clerk", session_id="s", user_id="ann", app=env.client.task_queue)
        said: list[str] = []
        for _ in range(MESSAGES):
            sent = await session.send("next", when_busy="reject")
            if asks:
                await waiting(await sent.invocation(), "fc-1")
                await sent.approve()
            said.append((await sent.result()).text)
        assert said == [str({"turns": turn, "user:turns": turn}) for turn in range(1, MESSAGES + 1)]
        assert preceding == ["", *said[:-1]]
        await replay(await session.handle.fetch_history(), converter=env.temporal.data_converter)
