"""A server that can skip time, so that days pass in seconds."""

import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TypeAlias

import pytest

from tests.server.conftest import Verification
from tests.steps import find_stuck_tasks
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.contract import Settings
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment
from waystation.testing.time_skipping import SKIPS_TIME

DAY = timedelta(days=1)

SkipTime: TypeAlias = Callable[..., contextlib.AbstractAsyncContextManager[AgentEnvironment]]


@pytest.fixture(scope="module")
async def skipping_server() -> AsyncIterator[EmbeddedServer]:
    """Run a server that can skip time."""
    async with EmbeddedServer(dynamic_config=SKIPS_TIME) as server:
        yield server


@pytest.fixture
def serve_and_skip(
    skipping_server: EmbeddedServer, verification: Verification, request: pytest.FixtureRequest
) -> SkipTime:
    """Serve an agent, and verify the invocations in `verified` at the end."""

    @contextlib.asynccontextmanager
    async def serving(agent: Agent, verified: list[Invocation]) -> AsyncIterator[AgentEnvironment]:
        async with AgentEnvironment(agent, server=skipping_server, task_queue=request.node.name) as env:
            yield env
            for invocation in verified:
                await verification.check(Settings())(invocation)
                assert find_stuck_tasks(await invocation.history()) == []

    return serving
