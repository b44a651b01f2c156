"""Two builds replace each other while calls are pending. Each build has workers for workflows and for activities."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.documents import how_to
from tests.server.cli.shell import Shell
from tests.server.processes.workers import Place, WorkerProcess, plan, until
from waystation.client import AgentClient, Invocation

TEXT = how_to("upgrade")
PAY = plan([("pay", {"amount": 5})], [("remember", {"word": "paid"})])
WAITING = 100


@pytest.fixture
def shell(place: Place, tmp_path: Path) -> Shell:
    """Return an operator's terminal."""
    folder = tmp_path / "terminal"
    folder.mkdir()
    return Shell.at(folder, place.address)


async def run_documented(shell: Shell, place: Place, start: str, build: str) -> None:
    """Run the command of the page that starts with `start`, for this test's deployment and `build`, until it works.

    The server knows a build only a moment after the build's workers have started.
    """
    joined = TEXT.replace("\\\n", " ")
    [command] = re.findall(rf"^{re.escape(start)}.*$", joined, re.MULTILINE)
    command = re.sub(r"(deployment-name) \S+", rf"\1 {place.task_queue}", command)
    command = re.sub(r"(build-id) \S+", rf"\1 {build}", command)
    command = command.replace("TaskQueue='waystation'", f"TaskQueue='{place.task_queue}'")
    await shell.until(command, "")


async def make_current(shell: Shell, place: Place, build: str) -> None:
    """Make a build the current one, which receives all new work."""
    await run_documented(shell, place, "temporal worker deployment set-current-version", build)


@asynccontextmanager
async def deployed(place: Place, build: str) -> AsyncIterator[tuple[WorkerProcess, WorkerProcess]]:
    """Run a build as the Helm chart does: workflows and activities in separate processes."""
    version = ("--deployment-version", f"{place.task_queue}.{build}")
    async with (
        place.worker("--only", "workflows", *version) as workflows,
        place.worker("--only", "activities", *version) as activities,
    ):
        yield workflows, activities


async def start_waiting(client: AgentClient, count: int) -> Sequence[Invocation]:
    """Start invocations, and return them when the call of each is waiting for approval."""
    started = await asyncio.gather(*(client.start("planned", PAY) for _ in range(count)))
    for invocation in started:
        await until(invocation.pending, "a call that waits")
    return started


async def last_process(invocation: Invocation) -> int:
    """Return the ID of the process that ran the last tool of an invocation."""
    pid: int = json.loads((await invocation.result()).text)[-1][1]["pid"]
    return pid


async def approve_slowly(invocations: Sequence[Invocation], approved: asyncio.Event) -> None:
    """Approve one call after another. Report when a third has been approved."""
    for number, invocation in enumerate(invocations):
        await invocation.approve()
        if number == len(invocations) // 3:
            approved.set()


@pytest.mark.timeout(600)
async def test_a_rolling_deploy_loses_and_doubles_nothing(place: Place, client: AgentClient, shell: Shell) -> None:
    """Each of 100 pending calls runs exactly once, whether it is approved before, during or after the deployment."""
    async with AsyncExitStack() as old_build:
        old = await old_build.enter_async_context(deployed(place, "1"))
        await make_current(shell, place, "1")
        waiting = await start_waiting(client, WAITING)
        before, during, after = waiting[:20], waiting[20:80], waiting[80:]
        await asyncio.gather(*(invocation.approve() for invocation in before))
        assert {await last_process(invocation) for invocation in before} == {old[1].pid}
        async with deployed(place, "2") as (_, new):
            third = asyncio.Event()
            approving = asyncio.create_task(approve_slowly(during, third))
            await third.wait()
            await make_current(shell, place, "2")
            for worker in old:
                assert await worker.stop() == 0
            await approving
            await asyncio.gather(*(invocation.approve() for invocation in after))
            processes = Counter([await last_process(invocation) for invocation in waiting])
            assert {await last_process(invocation) for invocation in after} == {new.pid}
    assert processes.total() == WAITING
    assert set(processes) == {old[1].pid, new.pid}
    paid = Counter(line["key"] for line in place.ledger.lines("paid"))
    lost = [invocation for invocation in waiting if f"{invocation.id}/fc-1" not in paid]
    assert [[entry.body for entry in (await invocation.log()).entries] for invocation in lost] == []
    assert paid == {f"{invocation.id}/fc-1": 1 for invocation in waiting}


@pytest.mark.timeout(300)
async def test_pinned_open_invocations_stay_on_their_build(place: Place, client: AgentClient, shell: Shell) -> None:
    """New invocations start on the current build; after their pins are removed, old ones move there, too."""
    async with deployed(place, "1") as (_, old):
        await make_current(shell, place, "1")
        stays, moves = await start_waiting(client, 2)
        await run_documented(shell, place, "temporal workflow update-options", "1")
        async with deployed(place, "2") as (_, new):
            await make_current(shell, place, "2")
            [begins] = await start_waiting(client, 1)
            await asyncio.gather(begins.approve(), stays.approve())
            assert (await last_process(begins), await last_process(stays)) == (new.pid, old.pid)
            await shell.until(
                f"temporal workflow update-options --workflow-id {moves.id} --versioning-override-behavior unspecified",
                "",
            )
            await moves.approve()
            assert await last_process(moves) == new.pid
