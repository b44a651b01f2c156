"""`waystation web` as a process: its start, its end, and its use of a proxy."""

import re
import signal
import sys
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.server.processes.workers import Place, Process, until
from tests.server.web.sites import page_of
from waystation.agents import Agent
from waystation.approvers.identity import write_examples
from waystation.client.agent_client import AgentClient
from waystation.web.limits import Limits
from waystation.worker import announce_agents

TOKEN = "a-token-of-a-test-that-is-long-enough"
OIDC = '[oidc]\nissuer = "https://login.example.com"\nclient_id = "inbox"\n'


def web_at(place: Place, *options: str) -> Process:
    """Return a server that is not started yet."""
    command = (sys.executable, "-m", "waystation.cli", "--address", place.address, "web", "--port", "0", *options)
    return Process(*command, environment={"WAYSTATION_WEB_TOKEN": TOKEN})


async def address(web: Process) -> str:
    """Return the address of a server."""

    def serving() -> re.Match[str] | None:
        return re.search(r"Serving at (\S+);", " ".join(web.other))

    found = await until(serving, "the address")
    assert found
    return found[1]


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_an_ending_server_exits_with_0_and_ends_its_streams(
    place: Place, client: AgentClient, by: signal.Signals
) -> None:
    """A reader sees the end of its stream, not a broken connection, and no status, so it reconnects."""
    await announce_agents(client.temporal, [Agent(name="nobody")])
    invocation = await client.start("nobody", "go")
    async with web_at(place) as web:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx.AsyncClient(base_url=await address(web), headers=headers) as program,
            program.stream("GET", f"{page_of(invocation)}/events") as response,
        ):
            lines = response.aiter_lines()
            assert await anext(lines) == ": events follow"
            web.send(by)
            rest = [line async for line in lines]
        assert await web.exit_code() == 0
        assert rest == ["retry: 2000", ""]
        assert [line for line in web.other if "Traceback" in line] == []
    await invocation.handle.terminate()


@pytest.mark.parametrize(("options", "each_by_itself"), [(("--url", "https://inbox.example"), True), ((), False)])
async def test_behind_a_proxy_too_many_attempts_block_only_their_sender(
    place: Place, options: tuple[str, ...], each_by_itself: bool
) -> None:
    """The proxy names the client; without one, such a header is ignored."""
    async with web_at(place, *options) as web, httpx.AsyncClient(base_url=await address(web)) as http:

        async def knock(client: str) -> int:
            sent = {"X-Forwarded-For": f"198.51.100.9, {client}", **({"Host": "inbox.example"} if options else {})}
            return (await http.get("/login?token=guessed", headers=sent)).status_code

        assert 429 in [await knock("203.0.113.7") for _ in range(Limits().login_attempts * 2)]
        assert await knock("203.0.113.8") == (403 if each_by_itself else 429)


@pytest.mark.parametrize(("options", "links"), [((), 0), (("--as", "dana"), 1)])
async def test_with_a_provider_no_link_is_printed(
    place: Place, tmp_path: Path, options: tuple[str, ...], links: int
) -> None:
    """A link would let every reader of the log log in. A person who configures a name still gets one."""
    write_examples(tmp_path / "identity")
    file = tmp_path / "identity" / "gateway.toml"
    file.write_text(file.read_text() + OIDC)
    async with web_at(place, "--identity", str(file), *options) as web:
        await address(web)
        assert await web.stop() == 0
        assert sum("/login?token=" in line for line in web.other) == links


@pytest.mark.parametrize("more", ["", '[oidc.require]\ndomains = ["example.com"]\n'])
async def test_a_public_provider_is_served_with_a_requirement_or_on_request(
    place: Place, tmp_path: Path, more: str
) -> None:
    """The option is needed only without a requirement."""
    write_examples(tmp_path / "identity")
    file = tmp_path / "identity" / "gateway.toml"
    file.write_text(file.read_text() + OIDC.replace("login.example.com", "gitlab.com") + more)
    async with web_at(place, "--identity", str(file), *([] if more else ["--allow-any-account"])) as web:
        await address(web)
        assert await web.stop() == 0
