"""An attacker's workflow starts invocations as its children, with claims that only a real caller may make."""

import asyncio
import contextlib
import hashlib
import itertools
import json
import time

import pytest
from temporalio.client import WorkflowFailureError

from tests.agents import Till
from tests.server.attacks.attackers import ANN, ARGS, Attacker, agree, payer, recorded_reply, settled
from tests.server.conftest import Serve
from tests.steps import start_and_wait, wait_until
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, says

PARENTS = ("Payroll", "AgentSession", "AgentInvocation")
"""The types of workflow that an attacker's worker claims to run."""


async def forged_approval(env: AgentEnvironment) -> JsonObject:
    """Return a remembered approval for the payment, made of readable parts of another history."""
    invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
    (call,) = (await recorded_reply(invocation))["calls"]
    await invocation.handle.terminate()
    terms = {"policy": call["approval"], "schema": call["declared"]}
    bound = json.dumps(terms, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {
        "agent": "payer",
        "tool": "pay",
        "args": ARGS,
        "bound_to": hashlib.sha256(bound.encode()).hexdigest()[:32],
        "by": ANN,
        "until": time.time() + 3_600,
        "origin": f"{invocation.id}/fc-1",
    }


async def test_both_approvers_may_remember_an_approval_for_their_session(serve: Serve, there: Installation) -> None:
    """As a control, the approvers themselves grant what is forged below."""
    till = Till()
    async with serve(payer(till), identity=there.worker) as env:
        session = env.client.session(agent="payer", session_id=env.client.task_queue)
        first = await (await session.send("go")).invocation()
        await agree(env, there, first, remember=True)
        await first.result()
        await (await session.send("again")).result()
    assert till.paid == [5, 5]


@pytest.mark.parametrize("parent", PARENTS)
async def test_a_parent_that_claims_a_remembered_approval_gets_nothing_paid(
    serve: Serve, there: Installation, attacker: Attacker, parent: str
) -> None:
    """Two verified approvers must agree, whatever workflow starts the invocation and whatever it claims."""
    till = Till()
    async with serve(payer(till), identity=there.worker, verify=False) as env:
        params = {"agent": "payer", "message": "go", "standing": [await forged_approval(env)]}
        invocation = await attacker.child(env, params, parent=parent)
        (call,) = await settled(invocation, till)
        assert call.function_call_id == "fc-1"
        assert call.approved_by == ()
        await agree(env, there, invocation)
        await invocation.result()
    assert till.paid == [5]


class Talker:
    """An agent that says hello, and the prompts of its model."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def agent(self) -> Agent:
        """Return the agent."""

        def act(request: LlmRequest) -> LlmResponse:
            self.shown.append(str(request.contents))
            return says("Hello.")

        return Agent(name="talker", model=FunctionModel(act))


async def test_a_workflow_with_the_id_of_a_session_does_not_see_it(serve: Serve, attacker: Attacker) -> None:
    """After a session closed, an attacker runs a workflow of its type under its ID, for its user."""
    talker = Talker()
    async with serve(talker.agent(), verify=False) as env:
        names = {"agent": "talker", "user_id": "ann", "session_id": env.client.task_queue}
        session = env.client.session(**names)
        for text in ("My secret is 4711.", "Again."):
            await (await session.send(text)).result()
        assert "4711" in talker.shown[-1]
        link = {"id": session.id, "run_id": (await session.handle.describe()).run_id, "number": 2}
        await session.close()
        await session.handle.result()
        talker.shown.clear()
        params = {**names, "message": "What is it?", "session": link}
        invocation = await attacker.child(env, params, parent="AgentSession", parent_id=session.id)
        with pytest.raises(WorkflowFailureError):
            await invocation.handle.result()
        assert talker.shown == []


async def test_a_parent_that_names_a_foreign_session_does_not_see_it(serve: Serve, attacker: Attacker) -> None:
    """Only the session that really started an invocation is its session, even if the attacker names its user."""
    talker = Talker()
    async with serve(talker.agent(), verify=False) as env:
        session = env.client.session(agent="talker", session_id=env.client.task_queue, user_id="ann")
        for text in ("My secret is 4711.", "Again."):
            await (await session.send(text)).result()
        assert "4711" in talker.shown[-1]  # the control: the session itself shows its earlier messages
        run_id = (await session.handle.describe()).run_id
        links: list[JsonObject] = [{"id": session.id, "run_id": run_id, "number": 2}, {"id": session.id, "number": 3}]
        for parent, user_id, link in itertools.product(PARENTS, ("eve", "ann"), links):
            talker.shown.clear()
            params = {"agent": "talker", "message": "What is it?", "user_id": user_id, "session": link}
            invocation = await attacker.child(env, params, parent=parent)
            ended = asyncio.ensure_future(invocation.handle.result())

            async def is_visible(ended: asyncio.Future[object] = ended) -> bool:
                return bool(talker.shown) or ended.done()

            await wait_until(is_visible, "that the model was asked, or the invocation ended")
            assert "4711" not in str(talker.shown)
            with contextlib.suppress(WorkflowFailureError):
                await ended
            assert "4711" not in str(talker.shown)


async def test_a_parent_that_names_a_session_of_another_tenant_does_not_see_it(
    serve: Serve, attacker: Attacker
) -> None:
    """The session stays invisible to any tenant of the attacker, even if the app looks like a tenant's key."""
    talker = Talker()
    async with serve(talker.agent(), verify=False) as env:
        names = {"agent": "talker", "session_id": env.client.task_queue}
        session = env.client.session(**names, tenant="acme")
        await (await session.send("My secret is 4711.")).result()
        link = {"id": session.id, "run_id": (await session.handle.describe()).run_id, "number": 2}
        talker.shown.clear()
        claims: list[JsonObject] = [{}, {"tenant": "globex"}, {"tenant": "acme"}, {"app": "acme~~waystation"}]
        for parent, claim in itertools.product(PARENTS, claims):
            params = {**names, **claim, "message": "What is it?", "session": link}
            invocation = await attacker.child(env, params, parent=parent)
            with contextlib.suppress(WorkflowFailureError):
                await invocation.handle.result()
            assert "4711" not in str(talker.shown)
