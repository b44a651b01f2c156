"""A quorum needs approvals of several authorized people for the same arguments."""

from typing import Any

from tests.agents import Till, payer
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, catch_refusal, force_continue_as_new, start_and_wait, wait_for_calls
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.testing import AgentEnvironment


def payer_of(till: Till, **policy: Any) -> Agent:
    """Return an agent that pays 5 after two approvals with unverified names."""
    return payer(till.pay, approval=ApprovalPolicy(**{"quorum": 2, "verified": False, **policy}))


async def start_pending(env: AgentEnvironment, **params: Any) -> Invocation:
    """Start the agent, and wait until the call is pending."""
    return await start_and_wait(env.client.start("payer", "pay 5", **params), "fc-1")


async def test_a_call_waits_until_enough_people_have_approved_it(serve: Serve) -> None:
    """The first receipt contains the number of missing approvals, and everyone sees the approvers."""
    till = Till()
    async with serve(payer_of(till)) as env:
        invocation = await start_pending(env)
        first = await invocation.approve(by="ann")
        (pending,) = await wait_for_calls(invocation, "fc-1")
        assert (first["approved_by"], first["lacking"]) == (["ann"], 1)
        assert pending.approved_by == ("ann",)
        assert till.paid == []
        await approve_and_finish(invocation, by="bob")
    assert till.paid == [5]


async def test_the_editor_is_the_first_to_approve_the_changed_call(serve: Serve) -> None:
    """Earlier approvers must approve again, because the digest that they saw no longer matches."""
    till = Till()
    async with serve(payer_of(till)) as env:
        invocation = await start_pending(env)
        (before,) = await invocation.pending()
        await invocation.approve(by="ann")
        edit_receipt = await invocation.answer("edit", "fc-1", by="bob", args={"amount": 4})
        (after,) = await wait_for_calls(invocation, "fc-1")
        assert (after.args, after.approved_by) == ({"amount": 4}, ("bob",))
        assert edit_receipt["digest"] == after.digest != before.digest
        assert await catch_refusal(invocation.approve(by="ann", digest=before.digest)) == "DigestMismatch"
        await approve_and_finish(invocation, by="ann", digest=after.digest)
    assert till.paid == [4]


async def test_votes_survive_continue_as_new(serve: Serve) -> None:
    """The invocation continues in another run between two approvals."""
    till = Till()
    async with serve(payer_of(till)) as env:
        handle = await env.client.temporal.start_workflow(
            "AgentInvocation",
            {"agent": "payer", "message": "go", "cut_after": 20},
            id=f"cut-{env.client.task_queue}",
            task_queue=env.client.task_queue,
        )
        invocation = Invocation(env.client, handle)
        await wait_for_calls(invocation, "fc-1")
        await invocation.approve(by="ann")
        await force_continue_as_new(invocation)
        (pending,) = await wait_for_calls(invocation, "fc-1")
        assert pending.approved_by == ("ann",)
        assert await catch_refusal(invocation.approve(by="ann")) == "AlreadyAnswered"
        await approve_and_finish(invocation, by="bob")
    assert till.paid == [5]
