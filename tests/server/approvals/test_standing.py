"""A remembered approval covers later calls like the approved one, for a limited time, in one conversation."""

from datetime import timedelta
from typing import Any

from temporalio.service import RPCError

from tests.agents import Till
from tests.server.conftest import Serve
from tests.steps import reject_and_finish, start_and_wait, wait_for_calls, wait_until
from waystation.agents import Agent
from waystation.core.approval import ApprovalPolicy, RememberedApproval
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool

HOUR = timedelta(hours=1)


def clerk(till: Till, *replies: Any, name: str = "clerk", **policy: Any) -> Agent:
    """Return an agent with a policy that lets approvers remember an approval for equal payments."""
    given = ApprovalPolicy(**{"remember": HOUR, **policy})
    return Agent(name=name, model=ScriptedModel(*replies), tools=[FunctionTool(till.pay, approval=given)])


def pays(amount: int) -> Any:
    """Return a reply that pays."""
    return calls(("pay", {"amount": amount}))


async def test_a_call_like_one_that_was_approved_runs_unasked(serve: Serve) -> None:
    """An equal call runs without another approval; a call with other arguments needs one."""
    till = Till()
    async with serve(clerk(till, pays(5), pays(5), pays(6), says("Done."))) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        await invocation.approve(by="ann", remember=True)
        await wait_for_calls(invocation, "fc-3")
        assert till.paid == [5, 5]
        await reject_and_finish(invocation, "fc-3")
        log = await invocation.log()
    told = [(e.custom_metadata or {})["approval"] for e in log.state.events if "approval" in (e.custom_metadata or {})]
    assert told == [{"function_call_id": "fc-2", "action": "standing", "origin": f"{invocation.id}/fc-1"}]


async def test_an_approval_that_is_not_to_be_remembered_is_not(serve: Serve) -> None:
    """An approval covers later calls only if the approver asks for it, even if the policy allows more."""
    till = Till()
    async with serve(clerk(till, pays(5), pays(5), says("Done."))) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        await invocation.approve("fc-1")
        await wait_for_calls(invocation, "fc-2")
        await reject_and_finish(invocation, "fc-2")
    assert till.paid == [5]


async def test_it_ends_with_its_time(serve: Serve) -> None:
    """A remembered approval expires by the workflow's clock, here before the next call."""
    till = Till()
    agent = clerk(till, pays(5), pays(5), says("Done."), remember=timedelta(microseconds=1))
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        await invocation.approve(remember=True)
        await wait_for_calls(invocation, "fc-2")
        await reject_and_finish(invocation, "fc-2")
    assert till.paid == [5]


async def test_called_agents_hand_it_on(serve: Serve) -> None:
    """An approval remembered in one called agent covers the calls of the next one, too."""
    till = Till()
    below = Agent(
        name="below",
        model=ScriptedModel(pays(5), says("Paid."), pays(5), says("Paid again.")),
        tools=[FunctionTool(till.pay, approval=ApprovalPolicy(remember=HOUR))],
    )
    above = Agent(
        name="above",
        model=ScriptedModel(calls(("below", {"request": "a"})), calls(("below", {"request": "b"})), says("Done.")),
        tools=[AgentTool(below)],
    )
    async with serve(above) as env:
        invocation = await env.client.start("above", "go")
        child = env.client.invocation(f"{invocation.id}/fc-1")
        await waiting_below(env, child.id)
        await child.approve("fc-1", remember=True)
        await invocation.result()
    assert till.paid == [5, 5]


async def waiting_below(env: Any, invocation_id: str) -> None:
    """Wait until a called agent waits."""

    async def look() -> bool:
        try:
            return bool(await env.client.invocation(invocation_id).pending())
        except RPCError:
            return False

    await wait_until(look, f"a call waiting in {invocation_id}")


async def test_nobody_starts_an_invocation_with_approvals_of_their_own(serve: Serve) -> None:
    """Remembered approvals are accepted only from the workflow that calls an agent."""
    till = Till()
    agent = clerk(till, pays(5), says("Done."))
    async with serve(agent) as env:
        first = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        await first.approve(remember=True)
        (genuine,) = (await first.log()).state.approvals.standing
        await first.result()
    assert isinstance(genuine, RememberedApproval)
    forged: JsonObject = genuine.model_dump(mode="json")
    again = clerk(till, pays(5), says("Done."))
    async with serve(again) as env:
        handle = await env.client.temporal.start_workflow(
            "AgentInvocation",
            {"agent": "clerk", "message": "go", "standing": [forged]},
            id=f"forged-{env.client.task_queue}",
            task_queue=env.client.task_queue,
        )
        invocation = env.client.invocation(handle.id)
        await wait_for_calls(invocation, "fc-1")
        await reject_and_finish(invocation, "fc-1")
    assert till.paid == [5]
