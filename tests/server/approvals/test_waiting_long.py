"""A pending call without an answer causes reminders and escalations, and finally expires."""

from typing import Any

from tests.agents import Till, payer
from tests.server.workflows.author_code import failure
from tests.server.workflows.skipping import DAY, SkipTime
from tests.steps import approve_and_finish, catch_refusal, wait_for_calls
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy, Escalation
from waystation.core.log import DeadlinePassed, ReminderDue


def payer_of(till: Till, **policy: Any) -> Agent:
    """Return an agent that pays 5 when its policy allows it."""
    approval = ApprovalPolicy(**{"approvers": ("ann",), "verified": False, "deadline": 7 * DAY, **policy})
    return payer(till.pay, approval=approval)


async def timeline(invocation: Invocation) -> list[tuple[str, float]]:
    """Return the events caused by time alone, with the days since the call began to wait."""
    log = await invocation.log()
    began = log.state.calls["fc-1"].requested_at or 0.0
    kinds = (ReminderDue, DeadlinePassed)
    events = [(type(entry.body).__name__, entry.time) for entry in log.entries if isinstance(entry.body, kinds)]
    return [(kind, round((time - began) / DAY.total_seconds(), 2)) for kind, time in events]


async def test_an_escalation_adds_approvers(serve_and_skip: SkipTime) -> None:
    """Approvers of the escalation may answer only after it; the first approvers may still answer."""
    till, verified = Till(), list[Invocation]()
    agent = payer_of(till, escalation=(Escalation(after=2 * DAY, to=("boss",)),))
    async with serve_and_skip(agent, verified) as env:
        invocation = await env.client.start("payer", "pay 5")
        verified.append(invocation)
        await wait_for_calls(invocation, "fc-1")
        assert await catch_refusal(invocation.approve(by="boss")) == "NotAllowed"
        await env.skip(days=2)
        await approve_and_finish(invocation, by="boss")
        assert await timeline(invocation) == [("ReminderDue", 2.0)]
    assert till.paid == [5]


async def test_a_chain_of_reminders_and_escalations_ends_with_the_deadline(serve_and_skip: SkipTime) -> None:
    """Seven days pass: each notification comes at its time, and nothing is approved."""
    till, verified = Till(), list[Invocation]()
    steps = (Escalation(after=5 * DAY, to=("chief",)), Escalation(after=3 * DAY, to=("boss",)))
    agent = payer_of(till, reminders=(DAY, 4 * DAY), escalation=steps)
    async with serve_and_skip(agent, verified) as env:
        invocation = await env.client.start("payer", "pay 5")
        verified.append(invocation)
        await wait_for_calls(invocation, "fc-1")
        levels = []
        for _ in range(6):
            await env.skip(days=1)
            levels.append((await invocation.log()).state.calls["fc-1"].level)
        await env.skip(days=2)
        result = await invocation.result()
        days = [
            ("ReminderDue", 1.0),
            ("ReminderDue", 3.0),
            ("ReminderDue", 4.0),
            ("ReminderDue", 5.0),
            ("DeadlinePassed", 7.0),
        ]
        assert await timeline(invocation) == days
    assert levels == [0, 0, 1, 1, 2, 2]
    assert (result.text, till.paid) == ("Done.", [])


async def test_a_policy_may_fail_the_invocation_on_expiry(serve_and_skip: SkipTime) -> None:
    """An expired call fails the invocation with a separate type."""
    till, verified = Till(), list[Invocation]()
    async with serve_and_skip(payer_of(till, on_expiry="fail"), verified) as env:
        invocation = await env.client.start("payer", "pay 5")
        verified.append(invocation)
        await wait_for_calls(invocation, "fc-1")
        await env.skip(days=8)
        kind, message = await failure(invocation)
    assert (kind, message) == ("Expired", "Nobody answered the call of 'pay' before its deadline.")
    assert till.paid == []
