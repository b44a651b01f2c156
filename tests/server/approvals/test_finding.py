"""Pending calls are found in the whole namespace, from visibility and memos alone, on a server."""

from datetime import timedelta
from typing import Any

import pytest

from tests.agents import Till
from tests.server.approvals.asking import ask, asker, asks_once, boss, ids, listed, payer
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, catch_refusal, start_and_finish, start_and_wait, wait_until
from waystation.agents import Agent
from waystation.core.contract import MAX_MEMO_CALLS
from waystation.testing import FunctionModel, calls
from waystation.tools.long_running_tool import LongRunningFunctionTool


async def test_what_waits_is_found_by_agent_tool_user_and_session_while_every_worker_is_down(serve: Serve) -> None:
    """Finding pending calls needs neither a workflow ID nor a worker."""
    till = Till()
    async with serve(asker("buyer"), payer(till.pay, "cashier"), verify=False) as env:
        queue = env.client.task_queue
        bought = await env.client.start("buyer", "go", user_id=f"{queue}-dana", session_id="s1")
        paid = await env.client.start("cashier", "go", user_id=f"{queue}-dana", session_id="s2")
        other = await env.client.start("cashier", "go", user_id=f"{queue}-emil")
        await listed(env.client, 2, user_id=f"{queue}-dana")
        await listed(env.client, 1, user_id=f"{queue}-emil")
    dana: dict[str, Any] = {"user_id": f"{queue}-dana"}
    assert ids(await listed(env.client, 2, **dana)) == [f"{paid.id}/fc-1", f"{bought.id}/fc-1"]
    assert ids(await listed(env.client, 1, tool="ask", **dana)) == [f"{bought.id}/fc-1"]
    assert ids(await listed(env.client, 1, agent="cashier", **dana)) == [f"{paid.id}/fc-1"]
    assert ids(await listed(env.client, 1, session_id="s1", **dana)) == [f"{bought.id}/fc-1"]
    assert await listed(env.client, 0, older_than=timedelta(hours=1), **dana) == []
    assert await listed(env.client, 0, user_id='it\'s "nobody"') == []
    [call] = await listed(env.client, 1, agent="cashier", **dana)
    assert await env.client.approvals.get(call.approval_id) == call
    assert {*ids(await env.client.pending(**dana))} == {f"{bought.id}/fc-1", f"{paid.id}/fc-1"}
    assert await env.client.pending(**dana, tenant="acme") == []
    for invocation in (bought, paid, other):
        await invocation.handle.terminate()


async def test_an_agent_of_a_very_long_name_is_found(serve: Serve) -> None:
    """The server indexes the beginning of a long name, which is enough to find the agent."""
    name = f"a{'b' * 240}"
    async with serve(asker(name)) as env:
        invocation = await env.client.start(name, "go")
        assert ids(await listed(env.client, 1, agent=name)) == [f"{invocation.id}/fc-1"]
        await approve_and_finish(invocation)


async def test_a_list_comes_in_parts_and_no_call_is_left_out_or_told_twice(serve: Serve) -> None:
    """Each part names the beginning of the next one, even if its last call was answered in the meantime."""
    async with serve(asker()) as env:
        user = env.client.task_queue
        started = [await env.client.start("asker", str(n), user_id=user) for n in range(5)]
        await listed(env.client, 5, user_id=user)
        first = await env.client.approvals.list(limit=2, user_id=user)
        assert ids(first.calls) == [f"{each.id}/fc-1" for each in (started[4], started[3])]
        await started[3].approve()
        await started[3].result()
        second = await env.client.approvals.list(limit=2, user_id=user, page=first.next)
        third = await env.client.approvals.list(limit=2, user_id=user, page=second.next)
        assert ids(second.calls + third.calls) == [f"{each.id}/fc-1" for each in started[2::-1]]
        assert (bool(second.next), third.next) == (True, None)
        for invocation in (*started[:3], started[4]):
            await approve_and_finish(invocation)


async def test_an_invocation_lists_all_its_calls_although_its_memo_has_no_room_for_them(serve: Serve) -> None:
    """The history has the calls that do not fit into the memo, even while every worker is down."""
    model = FunctionModel(lambda request: calls(*[("ask", {"purpose": str(n)}) for n in range(MAX_MEMO_CALLS + 10)]))
    agent = Agent(name="many", model=model, tools=[LongRunningFunctionTool(ask)])
    async with serve(agent, verify=False) as env:
        invocation = await start_and_wait(
            env.client.start("many", "go", user_id=env.client.task_queue),
            *(f"fc-{n + 1}" for n in range(MAX_MEMO_CALLS + 10)),
        )
    pending = await invocation.pending()
    assert [call.args["purpose"] for call in pending] == [str(n) for n in range(MAX_MEMO_CALLS + 10)]
    assert None not in {call.run for call in pending}
    assert await listed(env.client, len(pending), user_id=env.client.task_queue) == pending
    await invocation.handle.terminate()


async def test_a_place_in_no_list_is_refused(serve: Serve) -> None:
    """An invalid position is reported as the caller's mistake."""
    async with serve(asker()) as env:
        with pytest.raises(ValueError, match="'yesterday' is not a page of this list"):
            await env.client.approvals.list(page="yesterday")


async def test_what_waits_below_an_invocation_is_of_its_tree(serve: Serve) -> None:
    """A foreign workflow is not listed, even if its ID looks like that of a called agent."""
    async with serve(boss(asker()), asker()) as env:
        top = await env.client.start("boss", "go")
        below = await listed(env.client, 1, below=top.id)
        assert ids(below) == [f"{top.id}/fc-1/fc-1"]
        stranger = await env.client.start("asker", "go", id=f"{top.id}/fc-2", user_id=top.id)
        await listed(env.client, 1, user_id=top.id)
        assert await listed(env.client, 1, below=top.id) == below
        for approval_id in (*ids(below), f"{stranger.id}/fc-1"):
            await env.client.approvals.approve(approval_id)
        await top.result()
        await stranger.result()


async def test_one_call_is_got_with_large_arguments_and_refused_with_the_reason(serve: Serve) -> None:
    """A memo has only small arguments; the approver sees all arguments with which the call will run."""
    hurried = Agent(
        name="hurried",
        model=asks_once("ask", {"purpose": "x"}),
        tools=[LongRunningFunctionTool(ask, deadline=timedelta(seconds=0.2))],
    )
    async with serve(asker(purpose="x" * 3_000), hurried) as env:
        approvals = env.client.approvals
        invocation = await start_and_wait(env.client.start("asker", "go"), "fc-1")
        assert (await approvals.get(f"{invocation.id}/fc-1")).args == {"purpose": "x" * 3_000}
        assert await catch_refusal(approvals.get(f"{invocation.id}/fc-2")) == "UnknownCall"
        assert await catch_refusal(approvals.get("no-such/fc-1")) == "UnknownCall"
        assert await catch_refusal(approvals.get("fc-1")) == "UnknownCall"
        await approvals.reject(f"{invocation.id}/fc-1", by="dana")
        await invocation.result()
        assert await catch_refusal(approvals.get(f"{invocation.id}/fc-1")) == "AlreadyAnswered"
        late = await start_and_finish(env.client.start("hurried", "go"))
        assert await catch_refusal(approvals.get(f"{late.id}/fc-1")) == "Expired"


async def test_a_call_of_an_invocation_that_was_cancelled_waits_no_more(serve: Serve) -> None:
    """Hazard: a decision for a closed invocation. It leaves the list, and an answer is refused with the reason."""
    async with serve(asker()) as env:
        invocation = await env.client.start("asker", "go", user_id=env.client.task_queue)
        [call] = await listed(env.client, 1, user_id=env.client.task_queue)
        await invocation.cancel()
        await listed(env.client, 0, user_id=env.client.task_queue)
        await wait_until(lambda: _ended(invocation), "the end")
        for asked in (env.client.approvals.get, env.client.approvals.approve):
            with pytest.raises(Exception, match="the invocation is cancelled") as refused:
                await asked(call.approval_id)
            assert type(refused.value).__name__ == "UnknownCall"


async def _ended(invocation: Any) -> bool:
    return (await invocation.log()).state.outcome.ended is not None
