"""Runs commands against a real server."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from tests.programs import Ran, command
from waystation.testing import AgentEnvironment

Command: TypeAlias = Callable[..., Coroutine[Any, Any, Ran]]


@pytest.fixture
def waystation() -> Command:
    """Run a command on the server of an environment."""

    async def run(env: AgentEnvironment, *arguments: str) -> Ran:
        return await command("--address", env.server.address, "--task-queue", env.client.task_queue, *arguments)

    return run
