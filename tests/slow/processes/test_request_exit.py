"""Programs of users whose workers end because a tool blocked their event loop or used too much memory."""

import contextlib
import json
import sys
from typing import Any

import pytest

from tests.server.processes import ledger
from tests.server.processes.workers import Place, Process, plan, until
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.errors import UnknownAgent


def program(place: Place) -> Process:
    """Return the user's program, not started yet."""
    return Process(
        *(sys.executable, "-m", "tests.server.processes.plugin_worker", place.address, place.task_queue),
        environment={ledger.VARIABLE: str(place.ledger.folder), **place.environment},
    )


async def start(client: AgentClient, message: str) -> Invocation:
    """Start an invocation as soon as the program has announced its agent."""

    async def attempt() -> Invocation | None:
        with contextlib.suppress(UnknownAgent):
            return await client.start("blocking", message)
        return None

    invocation = await until(attempt, "the agent of the program")
    assert invocation is not None
    return invocation


@pytest.mark.parametrize(
    ("tool", "args", "exit_code", "response"),
    [
        ("doze", {}, 11, {"error_type": "EventLoopBlocked"}),
        ("allocate", {"mebibytes": 400}, 12, {"result": 400}),
    ],
)
async def test_a_program_is_asked_to_exit_and_loses_no_call(
    place: Place, client: AgentClient, tool: str, args: dict[str, Any], exit_code: int, response: dict[str, Any]
) -> None:
    """The program drains first. Its successor passes the response to the model, and the tool has run once."""
    async with program(place) as first:
        invocation = await start(client, plan([(tool, args)]))
        assert await first.exit_code() == exit_code, first.other
    async with program(place):
        [[name, received]] = json.loads((await invocation.result()).text)
    assert (name, {key: received[key] for key in response}) == (tool, response)
    assert [line["attempt"] for line in place.ledger.lines("began")] == [1]
