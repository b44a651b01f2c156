"""A remembered approval covers the rest of the conversation, as long as the policy allows."""

from datetime import timedelta

import pytest

from tests.agents import Till
from tests.server.sessions.conftest import Converse, settled_events
from tests.steps import wait_for_calls
from waystation.agents import Agent, SequentialAgent
from waystation.client import Session
from waystation.core import ids
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import SESSION_WORKFLOW
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest
from waystation.testing import FunctionModel, calls, says
from waystation.testing.models import Reply
from waystation.tools.function_tool import FunctionTool

POLICY = ApprovalPolicy(remember=timedelta(hours=1))


def clerk(request: LlmRequest) -> Reply:
    """Reply with a payment of 5 for each message."""
    done = request.contents[-1]["parts"][-1].get("functionResponse")
    return says("Done.") if done else calls(("pay", {"amount": 5}))


def paying(till: Till) -> Agent:
    """Return an agent with a policy that lets approvers remember an approval for an hour."""
    return Agent(name="clerk", model=FunctionModel(clerk), tools=[FunctionTool(till.pay, approval=POLICY)])


async def allowed(session: Session, call_id: str = "fc-1") -> None:
    """Approve the first call, and remember the approval."""
    first = await session.send("pay")
    await wait_for_calls(await first.invocation(), call_id)
    await (await first.invocation()).approve(by="ann", remember=True)
    await first.result()
    await settled_events(session)  # the approval is remembered by the session


async def test_a_later_message_need_not_ask_again(converse: Converse) -> None:
    """Each invocation of the session receives earlier remembered approvals."""
    till = Till()
    async with converse(paying(till)) as session:
        await allowed(session)
        second = await session.send("again")
        await second.result()
    assert till.paid == [5, 5]


@pytest.mark.slow
async def test_it_is_carried_over_when_the_session_goes_on_in_a_further_run(converse: Converse) -> None:
    """The session continues as new after each invocation, and keeps the remembered approval."""
    till = Till()
    async with converse(paying(till), cut_after=1) as session:
        await allowed(session)
        for text in ("again", "and again"):
            await (await session.send(text)).result()
    assert till.paid == [5, 5, 5]


@pytest.mark.slow
async def test_an_agent_of_that_name_in_another_tree_asks_again(converse: Converse) -> None:
    """Sub-agents of different roots often have the same name, and their tools may differ in what they do."""
    till, other = Till(), Till()
    first = SequentialAgent(name="first", sub_agents=[paying(till)])
    second = SequentialAgent(name="second", sub_agents=[paying(other)])
    async with converse(first, second) as session:
        await allowed(session, "fc-1-1")
        sent = await session.send("pay", agent="second")
        await wait_for_calls(await sent.invocation(), "fc-1-1")
        await (await sent.invocation()).reject()
        await sent.result()
    assert (till.paid, other.paid) == ([5], [])


@pytest.mark.slow
async def test_nobody_begins_a_session_with_approvals_of_their_own(converse: Converse) -> None:
    """A start with forged remembered approvals does not count; only earlier runs of the session pass them on."""
    till = Till()
    async with converse(paying(till)) as session:
        await allowed(session)
        (genuine,) = (await session.invocation(1).log()).state.approvals.standing
        forged: JsonObject = {"standing": [genuine.model_dump(mode="json")]}
        given = session.given.model_copy(update={"session_id": f"{session.given.session_id}-forged"})
        await session.client.temporal.start_workflow(
            SESSION_WORKFLOW,
            {**given.model_dump(mode="json"), "carried": forged},
            id=ids.session(given.app, given.user_id, given.session_id),
            task_queue=session.client.task_queue,
        )
        other = Session(session.client, agent="clerk", session_id=given.session_id, user_id=given.user_id)
        sent = await other.send("pay")
        await wait_for_calls(await sent.invocation(), "fc-1")
        await (await sent.invocation()).reject()
        await sent.result()
    assert till.paid == [5]
