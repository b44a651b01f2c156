"""Besides decisions, an approver claims, releases and views a call; an operator waives or cancels it."""

from typing import Any

from tests.agents import Till, model_of, payer
from tests.server.conftest import Serve
from tests.steps import answer_and_finish, approve_and_finish, catch_refusal, start_and_wait
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.core.payload import JsonObject
from waystation.testing import AgentEnvironment, responses


async def start_pending(env: AgentEnvironment) -> Invocation:
    """Start the agent, and wait until the call is pending."""
    return await start_and_wait(env.client.start("payer", "pay 5"), "fc-1")


def approval_notes(invocation_events: list[Any]) -> list[JsonObject]:
    """Return the approvals that events report."""
    return [e.custom_metadata["approval"] for e in invocation_events if "approval" in (e.custom_metadata or {})]


async def test_a_claimed_call_is_not_answered_by_others(serve: Serve) -> None:
    """Everyone sees the claim; after its release, others may answer."""
    till = Till()
    async with serve(payer(till.pay)) as env:
        invocation = await start_pending(env)
        await invocation.answer("claim", by="ann")
        (pending,) = await invocation.pending()
        assert pending.claimed_by == "ann"
        assert await catch_refusal(invocation.approve(by="bob")) == "NotAllowed"
        assert await catch_refusal(invocation.answer("claim", by="bob")) == "NotAllowed"
        # Ann may be on holiday.
        await invocation.answer("release", by="bob")
        await approve_and_finish(invocation, by="bob")
        events = (await invocation.log()).state.events
    assert [(each["action"], each["by"]) for each in approval_notes(events)] == [("claim", "ann"), ("release", "bob")]
    assert till.paid == [5]


async def test_an_operator_waives_the_requirements_of_a_policy(serve: Serve) -> None:
    """The call runs, and the operator is recorded."""
    till = Till()
    agent = payer(till.pay, approval=ApprovalPolicy(quorum=3, verified=False))
    async with serve(agent) as env:
        invocation = await start_pending(env)
        await answer_and_finish(invocation, "waive", by="op", comment="the policy was changed")
        events = (await invocation.log()).state.events
    assert [(each["action"], each["by"], each["comment"]) for each in approval_notes(events)] == [
        ("waive", "op", "the policy was changed")
    ]
    assert till.paid == [5]


async def test_a_cancelled_call_is_reported_to_the_model_and_does_not_run(serve: Serve) -> None:
    """The model receives the operator's comment."""
    till = Till()
    agent = payer(till.pay)
    async with serve(agent) as env:
        invocation = await start_pending(env)
        await answer_and_finish(invocation, "cancel", by="op", comment="out of date")
        assert await catch_refusal(invocation.approve("fc-1")) == "AlreadyAnswered"
    response = {
        "error": "This tool call was cancelled by a person.",
        "error_type": "Withdrawn",
        "comment": "out of date",
    }
    assert responses(model_of(agent).requests[1]) == [("pay", response)]
    assert till.paid == []


async def test_a_policy_limits_actions_and_requires_fields(serve: Serve) -> None:
    """A policy may require a comment and the digest of the displayed call, and allow fewer actions."""
    till = Till()
    policy = ApprovalPolicy(actions=("approve", "reject"), comment=True, digest=True)
    async with serve(payer(till.pay, approval=policy)) as env:
        invocation = await start_pending(env)
        (pending,) = await invocation.pending()
        assert await catch_refusal(invocation.approve(comment="ok")) == "DigestMismatch"
        assert await catch_refusal(invocation.approve(digest=pending.digest, comment=" ")) == "InvalidAnswer"
        edited = invocation.answer("edit", args={"amount": 1}, digest=pending.digest, comment="less")
        assert await catch_refusal(edited) == "InvalidAnswer"
        assert (
            await catch_refusal(invocation.approve(digest=pending.digest, comment="ok", remember=True))
            == "InvalidAnswer"
        )
        await approve_and_finish(invocation, digest=pending.digest, comment="ok")
    assert till.paid == [5]
