"""Commands against a real server."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from typer.testing import CliRunner

from waystation.cli.main import app
from waystation.core.payload import JsonObject
from waystation.testing import AgentEnvironment


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[JsonObject]:
        """The JSON lines on stdout; there must be nothing else."""
        return [json.loads(line) for line in self.out.splitlines()]


Command: TypeAlias = Callable[..., Coroutine[Any, Any, Ran]]


async def command(*arguments: str) -> Ran:
    """Run `waystation` with these arguments, in a thread because it brings an event loop of its own."""
    result = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def waystation() -> Command:
    """Run a command on the server of an environment."""

    async def run(env: AgentEnvironment, *arguments: str) -> Ran:
        return await command("--address", env.server.address, "--task-queue", env.client.task_queue, *arguments)

    return run
