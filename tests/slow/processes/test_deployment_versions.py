"""Workers as builds of a deployment: the server gives open and new workflows to the current build."""

import json
import re
from pathlib import Path

import pytest

from tests.documents import how_to
from tests.server.cli.shell import Shell
from tests.server.conftest import verify_tree
from tests.server.processes.workers import Place, plan, until
from waystation.client.agent_client import AgentClient, Invocation

TEXT = how_to("check-before-deploying")
PAYS = plan([("pay", {"amount": 5})], [("remember", {"word": "paid"})])
LOOKS = plan([("remember", {"word": "seen"})])
LOOKS_AGAIN = plan([("remember", {"word": "seen"})], [("remember", {"word": "again"})])
"""A message for a conversation that contains `LOOKS`."""


@pytest.fixture
def shell(place: Place, tmp_path: Path) -> Shell:
    """Return an operator's terminal."""
    folder = tmp_path / "terminal"
    folder.mkdir()
    return Shell.at(folder, place.address)


def option(place: Place, build: str) -> tuple[str, str]:
    """Return the documented options that name the build of a worker."""
    [(name, value)] = re.findall(r"(--deployment-version) (\S+)", TEXT)
    return name, value.replace("agents", place.task_queue).replace("2026-11-21", build)


async def make_current(shell: Shell, place: Place, build: str) -> None:
    """Run the documented command; the server knows a build a moment after its worker is ready."""
    [command] = re.findall(r"^temporal worker deployment .*$", TEXT, re.MULTILINE)
    command = command.replace("name agents", f"name {place.task_queue}").replace("2026-11-21", build)
    await shell.until(command, "Successfully")


async def parked(client: AgentClient) -> Invocation:
    """Start an invocation, and return it when its call is pending."""
    invocation = await client.start("planned", PAYS)
    await until(invocation.pending, "a call that waits")
    return invocation


def process(text: str) -> int:
    """Return the ID of the process that ran the last tool."""
    pid: int = json.loads(text)[-1][1]["pid"]
    return pid


async def test_what_waits_goes_on_with_the_build_that_is_current(
    place: Place, client: AgentClient, shell: Shell
) -> None:
    """Pending calls and a session continue on the current build, even if they began without a version."""
    session = client.session(agent="planned", session_id=place.task_queue, user_id="ann")
    async with place.worker():
        waiting = [await parked(client)]
        async with place.worker(*option(place, "1")) as first:
            await make_current(shell, place, "1")
            waiting.append(await parked(client))
            assert process((await session.say(LOOKS)).text) == first.pid
        async with place.worker(*option(place, "2")) as second:
            await make_current(shell, place, "2")
            for invocation in waiting:
                await invocation.approve()
                assert process((await invocation.result()).text) == second.pid
                await verify_tree(invocation)
            assert process((await session.say(LOOKS_AGAIN)).text) == second.pid
    await session.handle.terminate()
