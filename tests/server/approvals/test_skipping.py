"""The test kit skips the time of invocations, and of the tokens with which people answer."""

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.agents import PAY, Till, payer, speaks
from tests.server.workflows.test_continuing import called, family, in_run, start_with_cuts
from tests.steps import start_and_wait, wait_for_calls
from waystation.core import ids
from waystation.core.approval import ApprovalPolicy, Escalation
from waystation.core.errors import NotAllowed
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment, Clock, People, TimeNotSkipped, calls, says
from waystation.testing.time_skipping import TimeSkipper
from waystation.tools import AgentTool, FunctionTool, ToolContext

DAY = timedelta(days=1)
HOUR_S = 3600.0
Open = Callable[..., AgentEnvironment]


@pytest.fixture
def clock() -> Clock:
    """Return the clock that workers and people share."""
    return Clock()


@pytest.fixture
def people(clock: Clock) -> People:
    """Return people whose tokens expire by the clock."""
    return People(clock=clock)


@pytest.fixture
def serve(skipping_server: EmbeddedServer, clock: Clock, people: People, request: pytest.FixtureRequest) -> Open:
    """Serve agents on a server that can skip time."""
    shared: dict[str, Any] = {"server": skipping_server, "clock": clock, "identity": people.identity}
    return functools.partial(AgentEnvironment, task_queue=request.node.name, **shared)


async def test_what_is_due_within_the_time_has_happened(serve: Open, people: People, clock: Clock) -> None:
    """The time counts from when the call waits, although the test skips right after the start."""
    till, steps = Till(), (Escalation(after=3 * DAY, to=("role:chief",)),)
    policy = ApprovalPolicy(approvers=("role:clerk",), reminders=(DAY,), escalation=steps)
    async with serve(payer(till.pay, approval=policy)) as env:
        invocation = await env.client.start("payer", "go")
        await env.skip(days=3)
        call = (await invocation.log()).state.calls["fc-1"]
        await people("chris", roles=["chief"]).approve(invocation)
        await invocation.result()
    assert (call.noticed, call.level, clock.ahead, till.paid) == (2, 1, 3 * DAY, [5])


async def test_tokens_expire_by_the_same_clock(serve: Open, people: People) -> None:
    """A token from before the skip has expired. A new one counts, although the computer's clock is behind it."""
    till, dana = Till(), people("dana")
    async with serve(payer(till.pay, approval=ApprovalPolicy(approvers=("dana",)))) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"))
        answer = {"function_call_id": "fc-1", "action": "approve", "answer_id": "a-1"}
        old = dana.token(namespace="default", approval_id=ids.approval(invocation.id, "fc-1"), answer=answer)
        await env.skip(days=2)
        with pytest.raises(NotAllowed, match="envelope has expired"):
            await invocation.answer("approve", "fc-1", answer_id="a-1", token=old)
        await dana.approve(invocation)
        await invocation.result()
    assert till.paid == [5]


async def test_activities_read_the_same_clock(serve: Open) -> None:
    """A tool sees that the response to a call that waited is days later than the message."""
    till, ages = Till(), list[float]()

    def look(tool_context: ToolContext) -> str:
        times = [event.timestamp for event in tool_context.session.events]
        ages.append(max(times) - min(times))
        return "seen"

    tools = [FunctionTool(till.pay, require_confirmation=True), look]
    async with serve(speaks("payer", PAY, calls(("look", {})), says("Done."), tools=tools)) as env:
        invocation = await env.client.start("payer", "go")
        await env.skip(days=3)
        await invocation.approve()
        await invocation.result()
    assert ages == [pytest.approx(3 * DAY.total_seconds(), abs=HOUR_S)]


async def test_the_time_of_a_caller_stands_still(serve: Open) -> None:
    """The call of a called agent expires. The caller's own call, which begins to wait afterward, has all its time."""
    till = Till()
    tool: dict[str, Any] = {"require_confirmation": True, "deadline": 5 * DAY}
    helper = payer(till.pay, PAY, says("Nobody answered."), name="helper", **tool)
    tools = [AgentTool(helper), FunctionTool(till.pay, **tool)]
    async with serve(speaks("boss", calls(("helper", {"request": "pay"})), PAY, says("Over."), tools=tools)) as env:
        invocation = await env.client.start("boss", "go")
        await env.skip(days=30)
        await wait_for_calls(invocation, "fc-2")
        await env.skip(days=4)
        await wait_for_calls(invocation, "fc-2")
        await env.skip(days=1)
        assert (await invocation.result()).text == "Over."
    assert till.paid == []


async def test_a_session_catches_up(serve: Open) -> None:
    """The session of a waiting invocation moves with the next skip, so that a remembered approval expires."""
    till = Till()
    agent = payer(till.pay, PAY, says("Paid."), PAY, says("Paid."), approval=ApprovalPolicy(remember=DAY))
    async with serve(agent) as env:
        session = env.client.session(agent="payer", session_id="s", user_id=env.client.task_queue)
        first = await session.send("go")
        await env.skip(days=3)
        [before] = await first.pending()
        await first.approve(remember=True)
        await first.result()
        await env.skip(days=2)
        second = await session.send("go")
        [after] = await wait_for_calls(second, "fc-1")
        await second.approve()
        await second.result()
    assert after.requested_at - before.requested_at == pytest.approx(5 * DAY.total_seconds(), abs=HOUR_S)
    assert till.paid == [5, 5]


async def test_a_tool_that_runs_holds_the_time(serve: Open, clock: Clock) -> None:
    """The error names the invocation and the activity. Nothing has moved; a skip after the tool's end counts."""
    released = threading.Event()

    def work() -> str:
        released.wait(30)
        return "worked"

    async with serve(speaks("worker", calls(("work", {})), says("Done."), tools=[work])) as env:
        invocation = await env.client.start("worker", "go")
        skipper = TimeSkipper(
            env.temporal,
            clock,
            task_queue=env.client.task_queue,
            started=env.started.keys(),
            is_served=lambda: True,
            limit_s=0.1,
        )
        try:
            with pytest.raises(TimeNotSkipped, match=f"{invocation.id}' (runs|has a workflow task)"):
                await skipper.skip(DAY)
        finally:
            released.set()
        assert clock.ahead == timedelta()
        await env.skip(days=1)
    assert clock.ahead == DAY


async def test_time_does_not_go_back(serve: Open, clock: Clock) -> None:
    """The error has the time that was given."""
    async with serve(payer(Till().pay)) as env:
        for days in (0, -1):
            with pytest.raises(ValueError, match=f"only forward, not by {timedelta(days=days)}"):
                await env.skip(days=days)
    assert clock.ahead == timedelta()


async def test_a_caller_that_has_continued_as_new_stands_still(serve: Open) -> None:
    """An activity follows the called agent then. Its call expires, and the caller finishes."""
    async with serve(family(7)) as env:
        invocation = await start_with_cuts(env, "family")
        await in_run(invocation, 3)
        child = await called(invocation, env)
        await env.skip(days=29)
        await wait_for_calls(child, "fc-1")
        await env.skip(days=1)
        assert (await child.result()).text == "child done"
        assert (await invocation.result()).status == "completed"


async def test_a_server_that_cannot_skip_time_is_named(server: EmbeddedServer) -> None:
    """The error has the server's address, and says how to start one that can."""
    async with AgentEnvironment(payer(Till().pay), server=server, task_queue="no-skips") as env:
        invocation = await env.client.start("payer", "go")
        with pytest.raises(TimeNotSkipped, match=f"{server.address} cannot skip time .*dynamic_config="):
            await env.skip(days=1)
        await invocation.cancel()
