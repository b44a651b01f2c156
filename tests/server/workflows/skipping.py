"""A server that can skip time, so that days pass in seconds."""

import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TypeAlias

import pytest
from temporalio.testing import TimeSkipper, TimeSkippingConfig

from tests.server.conftest import Verification
from tests.server.workflows.outside import stuck_tasks
from waystation.agents import Agent
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.contract import Settings
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment

DAY = timedelta(days=1)


class Clock:
    """A worker whose invocations have their own time."""

    def __init__(self, environment: AgentEnvironment, skipper: TimeSkipper) -> None:
        self._skipper = skipper
        self.client = AgentClient(skipper.client, task_queue=environment.client.task_queue)

    async def forward(self, invocation: Invocation, by: timedelta) -> None:
        """Skip time for one invocation."""
        await self._skipper.fast_forward(invocation.handle, by)


SkipTime: TypeAlias = Callable[..., contextlib.AbstractAsyncContextManager[Clock]]


@pytest.fixture(scope="module")
async def skipping_server() -> AsyncIterator[EmbeddedServer]:
    """Run a server that can skip time."""
    async with EmbeddedServer(dynamic_config={"frontend.WorkflowTimeSkippingEnabled": True}) as server:
        yield server


@pytest.fixture
def serve_and_skip(
    skipping_server: EmbeddedServer, verification: Verification, request: pytest.FixtureRequest
) -> SkipTime:
    """Serve an agent, and verify the invocations in `verified` at the end."""

    @contextlib.asynccontextmanager
    async def serving(agent: Agent, verified: list[Invocation]) -> AsyncIterator[Clock]:
        async with AgentEnvironment(agent, server=skipping_server, task_queue=request.node.name) as env:
            # Automatic skipping is off: it would skip to every deadline whenever nothing is in flight.
            yield Clock(env, TimeSkipper(env.temporal, config=TimeSkippingConfig(enabled=False)))
            for invocation in verified:
                await verification.check(Settings())(invocation)
                assert stuck_tasks(await invocation.history()) == []

    return serving
