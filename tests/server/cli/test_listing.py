"""`waystation list` and `stop`, and IDs that are typed only in part."""

from typing import Any

import pytest

from tests.server.approvals.asking import asker, boss
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from tests.steps import start_and_wait, wait_for_calls, wait_until
from waystation.cli import id_matching
from waystation.client import InvocationEntry
from waystation.testing import AgentEnvironment


class Agrees:
    """A person who answers each question in the same way."""

    def __init__(self, agrees: bool) -> None:
        self._agrees = agrees

    def agrees(self, _prompt: str) -> bool:
        """Return the answer."""
        return self._agrees


async def listed(env: AgentEnvironment, count: int, **filters: Any) -> list[InvocationEntry]:
    """Wait until so many invocations of this test's user are listed, and return them by ID."""

    async def look() -> list[InvocationEntry]:
        found = [entry async for entry in env.client.invocations.list(user_id="lister", **filters)]
        return sorted(found, key=lambda entry: entry.id) if len(found) == count else []

    return await wait_until(look, f"{count} invocations")


@pytest.mark.slow
async def test_invocations_are_listed_and_stopped(serve: Serve, waystation: Command) -> None:
    """The list has agent, status and pending calls; a stopped invocation is canceled with the agents that it called."""
    async with serve(asker("list_asker"), boss(asker("list_called"))) as env:
        first = await env.client.start("list_asker", "go", id="listed-one", user_id="lister")
        second = await env.client.start("boss", "go", id="listed-two", user_id="lister")
        await wait_for_calls(first, "fc-1")
        called = (await listed(env, 3))[-1]
        assert (called.agent, called.parent) == ("list_called", second.id)
        records = (await waystation(env, "list", "--user", "lister", "--json")).records
        assert [record["id"] for record in records] == ["listed-two", "listed-one"]
        assert (records[1]["status"], records[1]["pending"]) == ("waiting", ["listed-one/fc-1"])
        assert "waiting for anyone" in (await waystation(env, "list", "--user", "lister", "--agent", "list_asker")).out

        stopped = await waystation(env, "stop", "listed-two")
        assert (stopped.code, stopped.out) == (0, "canceled listed-two\n")
        assert (await waystation(env, "stop", "listed-two")).code == 1
        assert second.id in [entry.id for entry in await listed(env, 2, status="canceled")]
        await env.temporal.start_workflow("Shipping", id="listed-three", task_queue="others")
        assert "'Shipping', which is not stopped" in (await waystation(env, "stop", "listed-three")).err


@pytest.mark.slow
async def test_the_beginning_of_an_id_is_enough(
    serve: Serve, waystation: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that read use the only match; those that change something ask first; similar IDs are suggested."""
    async with serve(asker("short_asker"), verify=False) as env:  # one is terminated
        one, two = [await env.client.start("short_asker", "go", id=id) for id in ("brief-one", "brief-two")]
        for invocation in (one, two):
            await wait_for_calls(invocation, "fc-1")

        async def look() -> bool:
            return len(await env.client.invocations.find("brief-")) == 2

        await wait_until(look, "both IDs")
        read = await waystation(env, "state", "brief-o")
        assert (read.code, read.err) == (0, "brief-o is short for brief-one.\n")
        assert "Several IDs begin with 'brief-'" in (await waystation(env, "state", "brief-")).err
        assert "Did you mean 'brief-one'" in (await waystation(env, "state", "breif-one")).err
        assert "Did you mean 'brief-one/fc-1'" in (await waystation(env, "approve", "brief-o/fc-1")).err
        monkeypatch.setattr(id_matching, "find_person", lambda: Agrees(False))
        assert (await waystation(env, "approve", "brief-o/fc-1")).code == 1
        assert len(await one.pending()) == 1
        monkeypatch.setattr(id_matching, "find_person", lambda: Agrees(True))
        assert (await waystation(env, "approve", "brief-o/fc-1")).code == 0
        await one.result()
        await two.handle.terminate()


async def test_stopping_without_a_worker_is_not_confirmed(serve: Serve, waystation: Command) -> None:
    """The cancellation waits for a worker, and the command says so."""
    async with serve(asker("unserved")) as env:
        invocation = await start_and_wait(env.client.start("unserved", "go", id="unserved-one"), "fc-1")
    ran = await waystation(env, "stop", "unserved-one", "--wait", "0")
    assert ran.code == 7
    assert "when a worker is running" in ran.out
    await invocation.handle.terminate()
