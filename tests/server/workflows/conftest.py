"""After every workflow test, verify that no workflow task failed."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.server.conftest import Serve, verify_tree
from tests.server.workflows.skipping import serve_and_skip, skipping_server
from tests.steps import find_stuck_tasks
from waystation.agents import BaseAgent
from waystation.client.agent_client import Invocation
from waystation.core.contract import Settings
from waystation.testing import AgentEnvironment

__all__ = ["serve", "serve_and_skip", "skipping_server"]


@pytest.fixture
def serve(serve: Serve) -> Serve:
    """Serve agents, and verify at the end that no workflow task of any invocation failed.

    `adopt` names invocations that another worker started, to be verified together with those of this one.
    """

    @contextlib.asynccontextmanager
    async def serving(
        *agents: BaseAgent, adopt: Sequence[Invocation] = (), tasks_may_fail: bool = False, **options: Any
    ) -> AsyncIterator[AgentEnvironment]:
        settings = options.get("settings") or Settings()
        async with serve(*agents, **options) as env:
            yield env
            for invocation in adopt:
                await verify_tree(invocation, settings.workflow)
            query = f"TaskQueue = '{env.client.task_queue}'"
            async for execution in env.temporal.list_workflows(query):
                history = await env.client.invocation(execution.id).history()
                assert tasks_may_fail or find_stuck_tasks(history) == [], execution.id

    return serving
