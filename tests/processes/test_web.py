"""`waystation web` as a process: it ends as it is asked to, and its readers are told."""

import re
import signal
import sys

import httpx2 as httpx
import pytest

from tests.processes.workers import Place, Process, until
from waystation.client.agent_client import AgentClient

TOKEN = "a-token-of-a-test-that-is-long-enough"


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_it_ends_with_0_and_ends_its_streams(place: Place, client: AgentClient, by: signal.Signals) -> None:
    """A reader sees the end of its stream, not a broken connection, and no status, so it comes back."""
    invocation = await client.start("nobody", "go")
    command = (sys.executable, "-m", "waystation.cli", "--address", place.address, "web", "--port", "0")
    async with Process(*command, environment={"WAYSTATION_WEB_TOKEN": TOKEN}) as web:

        def serving() -> re.Match[str] | None:
            return re.search(r"Serving at (\S+);", " ".join(web.other))

        found = await until(serving, "the address")
        assert found
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx.AsyncClient(base_url=found[1], headers=headers) as program,
            program.stream("GET", f"/invocations/{invocation.id}/events") as response,
        ):
            lines = response.aiter_lines()
            assert await anext(lines) == ": events follow"
            web.send(by)
            rest = [line async for line in lines]
        assert await web.exit_code() == 0
        assert rest == ["retry: 2000", ""]
        assert [line for line in web.other if "Traceback" in line] == []
    await invocation.handle.terminate()
