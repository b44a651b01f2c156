"""`waystation pending` lists calls that wait for a person, as text and as JSON, on a server."""

import asyncio

import pytest

from tests.agents import Till
from tests.server.approvals.asking import asker, boss, listed, payer
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, start_and_wait


@pytest.mark.slow
async def test_the_list_can_be_narrowed(serve: Serve, waystation: Command) -> None:
    """Filters are agent, tool, person, age, and the invocation that started the call."""
    till = Till()
    async with serve(boss(asker("buyer")), payer(till.pay, "cashier")) as env:
        top = await env.client.start("boss", "go", user_id=env.client.task_queue)
        paid = await env.client.start("cashier", "go", user_id=env.client.task_queue)
        await listed(env.client, 2, user_id=env.client.task_queue)

        async def list_pending(*options: str) -> set[str]:
            ran = await waystation(env, "pending", *options, "--json")
            assert ran.code == 0
            mine = (each for each in ran.records if each["user_id"] == env.client.task_queue)
            return {each["invocation_id"] for each in mine}

        below = f"{top.id}/fc-1"
        assert await list_pending() == await list_pending("--person", "dana,role:finance") == {below, paid.id}
        assert await list_pending("--agent", "cashier") == await list_pending("--tool", "pay") == {paid.id}
        assert await list_pending("--below", top.id) == await list_pending("--agent", "buyer") == {below}
        assert await list_pending("--older-than", "1h") == set()
        assert (await waystation(env, "pending", "--older-than", "soon")).code == 2
        assert (await waystation(env, "pending", paid.id, "--tool", "pay")).code == 2
        assert "No such calls are waiting" in (await waystation(env, "pending", "--tool", "no-such")).out
        for invocation in (env.client.invocation(below), paid):
            await invocation.reject()
        await top.result()
        await paid.result()


@pytest.mark.slow
async def test_an_inbox_with_fifty_readers_is_never_refused(serve: Serve) -> None:
    """Hazard: an inbox that polls queries, which the server refuses at some point. This list reads visibility and
    memos.
    """
    async with serve(asker()) as env:
        invocation = await start_and_wait(env.client.start("asker", "go", user_id=env.client.task_queue), "fc-1")
        await listed(env.client, 1, user_id=env.client.task_queue)

        async def look() -> int:
            return len((await env.client.approvals.list(user_id=env.client.task_queue)).calls)

        before = len((await invocation.history()).events)
        assert set(await asyncio.gather(*(look() for _ in range(50)))) == {1}
        assert len((await invocation.history()).events) == before
        await approve_and_finish(invocation)
