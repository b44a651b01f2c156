"""Operators are asked about calls whose outcome is unknown. Their answers reach open invocations."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from tests.server.conftest import Serve
from tests.server.workflows.test_continuing import start_with_cuts
from tests.steps import force_continue_as_new, tool_responses, wait_for_model_calls, wait_until
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy, PendingCall
from waystation.core.errors import InvalidAnswer
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext

PAY_AND_ASK = calls(("pay", {"amount": 5}), ("ask", {}))


class Bank:
    """A bank whose first payments never return."""

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.keys: list[str] = []
        """The idempotency key of each attempt."""

    async def pay(self, amount: int, tool_context: ToolContext) -> dict[str, int]:
        """Pay."""
        self.keys.append(tool_context.idempotency_key)
        if len(self.keys) <= self.lost:
            await asyncio.Event().wait()
        return {"paid": amount}


def ask() -> dict[str, str]:
    """Ask somebody, so that the invocation stays open."""
    return {"status": "asked"}


def payer(bank: Bank, *replies: Any, **settings: Any) -> tuple[Agent, ScriptedModel]:
    """Return an agent with payments that may run only once, and its model."""
    model = ScriptedModel(*replies)
    tool = FunctionTool(bank.pay, **{"effect": "once", "timeout": timedelta(seconds=0.3), **settings})
    return Agent(name="agent", model=model, tools=[tool, LongRunningFunctionTool(ask)]), model


async def asked(env: AgentEnvironment, invocation: Invocation) -> PendingCall:
    """Return the question that operators are asked about an invocation, once it is listed."""

    async def find() -> list[PendingCall]:
        return [call async for call in env.client.approvals.each(unknown=True, below=invocation.id)]

    [call] = await wait_until(find, "a question")
    return call


async def test_the_model_receives_that_the_call_ran(serve: Serve) -> None:
    """The invocation is still open, because another call waits."""
    bank = Bank(lost=1)
    agent, model = payer(bank, PAY_AND_ASK, says("Waiting."), says("Paid."), says("Done."))
    async with serve(agent) as env:
        invocation = await env.client.start("agent", "go")
        question = await asked(env, invocation)
        assert (question.tool, question.args, question.kind) == ("pay", {"amount": 5}, "unknown")
        assert bank.keys[0] in question.hint
        with pytest.raises(InvalidAnswer, match="but not 'start_again'"):
            await invocation.answer("start_again", "fc-2", by="olga")
        await env.client.approvals.answer(question.approval_id, "ran", response={"paid": 5}, by="olga")
        request = await wait_for_model_calls(model, 3)
        await invocation.respond({"ok": True}, "fc-2")
        assert (await invocation.result()).text == "Done."
    assert bank.keys == [f"{invocation.id}/fc-1"]
    assert {"paid": 5} in tool_responses(request)


async def test_a_call_starts_again_under_the_same_key_until_its_outcome_is_known(serve: Serve) -> None:
    """A second unknown outcome is a second question; each answer starts the tool exactly once."""
    bank = Bank(lost=2)
    replies = says("Waiting."), says("Still waiting."), says("Paid."), says("Done.")
    agent, model = payer(bank, PAY_AND_ASK, *replies)
    async with serve(agent) as env:
        invocation = await env.client.start("agent", "go")
        first = await asked(env, invocation)
        answered = await env.client.approvals.answer(first.approval_id, "start_again", by="olga", answer_id="1")
        assert await env.client.approvals.answer(first.approval_id, "start_again", by="olga", answer_id="1") == answered
        await wait_for_model_calls(model, 3)
        second = await asked(env, invocation)
        assert second.approval_id != first.approval_id
        await env.client.approvals.answer(second.approval_id, "start_again", by="olga")
        request = await wait_for_model_calls(model, 4)
        await invocation.respond({"ok": True}, "fc-2")
        assert (await invocation.result()).text == "Done."
    assert bank.keys == [f"{invocation.id}/fc-1"] * 3
    assert {"paid": 5} in tool_responses(request)


async def test_an_answer_after_the_end_is_only_recorded(serve: Serve) -> None:
    """The question outlives the invocation, and so does its answer."""
    bank = Bank(lost=1)
    agent, model = payer(bank, calls(("pay", {"amount": 5})), says("Unknown."))
    async with serve(agent) as env:
        invocation = await env.client.start("agent", "go")
        assert (await invocation.result()).text == "Unknown."
        question = await asked(env, invocation)
        with pytest.raises(InvalidAnswer, match="cannot start again"):
            await env.client.approvals.answer(question.approval_id, "start_again", by="olga")
        await env.client.approvals.answer(question.approval_id, "not_run", by="olga", comment="No such payment.")
        result = await env.client.invocation(question.invocation_id).result()
        assert [call async for call in env.client.approvals.each(unknown=True, below=invocation.id)] == []
    assert result.output == {"action": "not_run", "by": "olga", "comment": "No such payment."}
    assert (len(bank.keys), len(model.requests)) == (1, 2)


async def test_an_answer_reaches_an_invocation_that_continued_as_new(serve: Serve) -> None:
    """The next run follows the question of the previous one."""
    bank = Bank(lost=1)
    agent, model = payer(bank, PAY_AND_ASK, says("Waiting."), says("Paid."), says("Done."))
    async with serve(agent) as env:
        invocation = await start_with_cuts(env, "agent")
        question = await asked(env, invocation)
        await force_continue_as_new(invocation)
        await env.client.approvals.answer(question.approval_id, "start_again", by="olga")
        request = await wait_for_model_calls(model, 3)
        await invocation.respond({"ok": True}, "fc-2")
        assert (await invocation.result()).text == "Done."
    assert bank.keys == [f"{invocation.id}/fc-1"] * 2
    assert {"paid": 5} in tool_responses(request)


@pytest.mark.slow
async def test_operators_are_asked_about_a_call_that_ignores_its_cancellation(serve: Serve) -> None:
    """The invocation waits for the call for a time, and ends without its outcome."""
    bank, ended, strict = Bank(lost=0), asyncio.Event(), ApprovalPolicy(on_expiry="fail", deadline=timedelta(seconds=1))

    async def pay(amount: int, tool_context: ToolContext) -> dict[str, int]:
        while not ended.is_set():
            with suppress(asyncio.CancelledError):
                await ended.wait()
        return await bank.pay(amount, tool_context)

    tool = FunctionTool(pay, effect="once", cancel_within=timedelta(seconds=1))
    tools = [tool, LongRunningFunctionTool(ask, approval=strict)]
    async with serve(Agent(name="agent", model=ScriptedModel(PAY_AND_ASK), tools=tools)) as env:
        invocation = await env.client.start("agent", "go")
        with pytest.raises(WorkflowFailureError):
            await invocation.result()
        question = await asked(env, invocation)
        ended.set()
        await env.client.approvals.answer(question.approval_id, "ran", by="olga")
    assert bank.keys == [f"{invocation.id}/fc-1"]


async def test_operators_are_asked_about_a_call_that_the_end_of_its_invocation_stops(serve: Serve) -> None:
    """The invocation fails, because another call expired, while the payment is on its way."""
    bank, strict = Bank(lost=1), ApprovalPolicy(on_expiry="fail", deadline=timedelta(seconds=1))
    pay = FunctionTool(bank.pay, effect="once", cancel_within=timedelta(seconds=1))
    tools = [pay, LongRunningFunctionTool(ask, approval=strict)]
    async with serve(Agent(name="agent", model=ScriptedModel(PAY_AND_ASK), tools=tools)) as env:
        invocation = await env.client.start("agent", "go")
        with pytest.raises(WorkflowFailureError):
            await invocation.result()
        question = await asked(env, invocation)
        assert bank.keys[0] in question.hint
        await env.client.approvals.answer(question.approval_id, "ran", by="olga")
    assert len(bank.keys) == 1
