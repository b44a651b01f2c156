"""`waystation workers`, `top` and `setup --dry-run` show a real server to an operator."""

import asyncio
import os
import pty
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.server.approvals.asking import asker
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve, empty_server
from tests.steps import start_and_wait, wait_for_calls, wait_until
from waystation.cli import diagnosis, overview
from waystation.cli.invocations import is_polled
from waystation.version import waystation_version

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Matches the sequences that style text and move the cursor."""
LEAVE_SCREEN = "\x1b[?1049l"
"""Restores the screen as it was before the program."""


@pytest.mark.slow
async def test_workers_and_invocations_are_listed(serve: Serve, waystation: Command) -> None:
    """Each poller has its build, and each agent the number of its invocations by status."""
    async with serve(asker("watched_asker")) as env:
        await start_and_wait(env.client.start("watched_asker", "go"), "fc-1")
        ran = await waystation(env, "workers", "--json")
        assert ran.code == 0
        assert {(record["kind"], record["build"]) for record in ran.records} == {
            ("workflows", waystation_version()),
            ("activities", waystation_version()),
        }

        async def count() -> bool:
            records = (await waystation(env, "top", "--json")).records
            return any(record["agent"] == "watched_asker" and record["waiting"] == 1 for record in records)

        await wait_until(count, "the waiting invocation")
        assert "watched_asker" in (await waystation(env, "top")).out
    nobody = await waystation(env, "--task-queue", "nobody-polls-this", "workers")
    assert (nobody.code, "0 polling task queue nobody-polls-this" in nobody.out) == (1, True)


async def test_workers_that_no_longer_poll_do_not_count(
    serve: Serve, waystation: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server lists a killed worker for minutes. The exit code says that none is left."""
    async with serve(asker("killed_asker")) as env:
        await wait_until(lambda: is_polled(env.client), "a poll")
        monkeypatch.setattr(diagnosis, "SEEN_S", -1.0)  # as if none had polled lately
        ran = await waystation(env, "workers", "--json")
        assert (ran.code, {record["active"] for record in ran.records}) == (1, {False})
        assert "workflows: 0 polling" in (await waystation(env, "workers")).out
        assert not await is_polled(env.client)


@pytest.mark.slow
async def test_top_updates_the_counts_until_it_is_interrupted(serve: Serve) -> None:
    """In a terminal, an invocation that begins to wait later is counted, too. Ctrl-C restores the screen."""
    parent, child = pty.openpty()
    async with serve(asker("live_asker"), verify=False) as env:
        invocations = [await env.client.start("live_asker", "go")]
        command = ("-m", "waystation.cli", "--address", env.server.address, "top", "--interval", "0.5")
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=child, stdout=child, stderr=child, cwd=ROOT, env=environment
        )
        os.close(child)
        screen = ""

        async def read_until(pattern: str) -> None:
            nonlocal screen
            async with asyncio.timeout(60):
                while not re.search(pattern, ESCAPES.sub("", screen)):
                    screen += (await asyncio.to_thread(os.read, parent, 65_536)).decode(errors="replace")

        try:
            await read_until(r"live_asker +· +1 ")
            invocations.append(await env.client.start("live_asker", "go"))
            await read_until(r"live_asker +· +2 ")
            process.send_signal(signal.SIGINT)
            screen = ""
            while LEAVE_SCREEN not in screen:
                screen += (await asyncio.to_thread(os.read, parent, 65_536)).decode(errors="replace")
            assert await process.wait() == 130
        finally:
            if process.returncode is None:
                process.kill()
            os.close(parent)
        for invocation in invocations:
            await invocation.handle.terminate()


@pytest.mark.slow
async def test_top_reports_that_older_invocations_are_left_out(
    serve: Serve, waystation: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning appears once on stderr, for a table and for JSON, and in the live view."""
    async with empty_server() as server, serve(asker("counted_asker"), server=server, verify=False) as env:
        invocations = [await env.client.start("counted_asker", "go") for _ in range(2)]

        async def are_listed() -> bool:
            return len([entry async for entry in env.client.invocations.list()]) == 2

        await wait_until(are_listed, "both invocations")
        assert (await waystation(env, "top", "--once")).err == ""
        monkeypatch.setattr(overview, "COUNTED", 1)
        for option in ("--once", "--json"):
            ran = await waystation(env, "top", option)
            assert (ran.code, ran.err) == (0, "Only the newest 1 invocations are counted.\n")
        for invocation in invocations:
            await wait_for_calls(invocation, "fc-1")
            await invocation.handle.terminate()


@pytest.mark.slow
async def test_a_user_is_deleted_only_after_a_confirmation(serve: Serve, waystation: Command, tmp_path: Path) -> None:
    """Without a terminal, `forget` requires `--yes` or `--dry-run`. It lists the data that it deletes or leaves."""
    stores = [f"--{name}={tmp_path / name}" for name in ("artifacts", "memory", "credentials")]
    async with serve(asker("forgetful_asker"), verify=False) as env:
        invocation = await start_and_wait(env.client.start("forgetful_asker", "go", user_id="zoe"), "fc-1")
        refused = await waystation(env, "forget", "--user", "zoe", *stores)
        assert (refused.code, "Pass --yes" in refused.err) == (2, True)
        planned = await waystation(env, "forget", "--user", "zoe", "--dry-run", *stores)
        assert (planned.code, f"{invocation.id} (running)" in planned.out) == (0, True)
        [record] = (await waystation(env, "forget", "--user", "zoe", "--yes", "--json", *stores)).records
        assert (record["workflows"], record["stopped"]) == ([invocation.id], [invocation.id])
        assert any("backups" in reason for reason in record["left"])
