"""An agent is edited while a call waits, and the invocation continues with the new definition.

No workflow has seen the agent, so nothing can be non-deterministic; every test also replays the whole history.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.agents import Till
from tests.server.conftest import Serve
from tests.steps import catch_failure, start_and_wait, tool_responses, wait_for_calls, wait_for_hold, wait_until_quiet
from waystation.agents import Agent, ApprovalRule, SequentialAgent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.core.log import ModelReplied
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def ask() -> None:
    """Ask somebody."""


def look() -> str:
    """Look something up."""
    return "seen"


@dataclasses.dataclass
class Continued:
    """An invocation that began with one agent and continued with another."""

    text: str
    requests: list[LlmRequest]
    """The requests to the changed agent's model."""
    definitions: list[str]
    """The digest of the agent definition at each reply."""


async def continued(
    serve: Serve,
    before: Agent,
    after: Agent,
    *waits: str,
    answer: Callable[[Invocation], Any] | None = None,
) -> Continued:
    """Start an invocation with `before` until these calls wait, restart the worker with `after`, answer, and finish."""
    async with serve(before, verify=False) as env:
        queue = env.client.task_queue
        invocation = await start_and_wait(env.client.start(before.name, "go"), *waits)
        await wait_until_quiet(invocation)
    async with serve(after, task_queue=queue, adopt=[invocation]):
        if answer:
            await answer(invocation)
        else:
            await invocation.approve(waits[0])
        result = await invocation.result()
    replies = [entry.body.reply for entry in (await invocation.log()).entries if isinstance(entry.body, ModelReplied)]
    assert isinstance(after.model, ScriptedModel)
    return Continued(result.text, after.model.requests, [reply.definition for reply in replies])


def asker(*replies: Any, tools: Any = None, **fields: Any) -> Agent:
    """Return an agent that asks someone, by default with one tool."""
    chosen = [LongRunningFunctionTool(ask)] if tools is None else tools
    return Agent(name="agent", model=ScriptedModel(*replies), tools=chosen, **fields)


async def test_an_edited_prompt_applies_from_the_next_model_call(serve: Serve) -> None:
    """The definition digests of the two replies differ, so a debugger can report the change."""
    before = asker(calls(("ask", {})), instruction="Be brief.")
    after = asker(says("Done."), instruction="Be kind.", description="Kind.")
    end = await continued(serve, before, after, "fc-1")
    assert end.text == "Done."
    assert (end.requests[0].system_instruction or "").startswith("Be kind.")
    assert len(set(end.definitions)) == 2


async def test_an_unchanged_agent_has_one_digest(serve: Serve) -> None:
    """A restart alone changes nothing."""
    end = await continued(serve, asker(calls(("ask", {}))), asker(says("Done.")), "fc-1")
    assert (len(end.definitions), len(set(end.definitions))) == (2, 1)


async def test_a_removed_long_running_tool_can_still_be_answered(serve: Serve) -> None:
    """The answer becomes the response without the tool, and the model continues."""
    end = await continued(serve, asker(calls(("ask", {}))), asker(says("Done."), tools=[]), "fc-1")
    assert end.text == "Done."
    assert tool_responses(end.requests[0]) == [{"status": "approved"}]
    assert end.requests[0].tools == []


def payer(till: Till, *replies: Any, **settings: Any) -> Agent:
    """Return an agent whose payments need a confirmation."""
    tool = FunctionTool(till.pay, **{"require_confirmation": True, **settings})
    return Agent(name="agent", model=ScriptedModel(*replies), tools=[tool])


PAY = calls(("pay", {"amount": 5}))


async def test_a_call_whose_tool_is_removed_between_attempts_has_an_unknown_outcome(serve: Serve) -> None:
    """If the hold is abandoned, the model learns that the call may have taken effect."""
    began = asyncio.Event()

    def book() -> None:
        """Book a table."""
        began.set()
        raise RuntimeError("lost the connection")

    tool = FunctionTool(book, effect="repeatable", retries=5)
    after = asker(says("Sorry."), tools=[look])
    async with serve(asker(calls(("book", {})), tools=[tool]), verify=False) as env:
        queue = env.client.task_queue
        invocation = await env.client.start("agent", "go")
        await began.wait()
    async with serve(after, task_queue=queue, adopt=[invocation]) as env:
        assert (await wait_for_hold(invocation))["reason"] == "tool_missing"
        await env.client.held.give_up(invocation.id)
        await invocation.result()
    assert isinstance(after.model, ScriptedModel)
    [response] = tool_responses(after.model.requests[0])
    assert response["error_type"] == "OutcomeUnknown"
    assert response["error"].startswith("An earlier attempt may have run `book`. Whether it took effect is unknown")
    assert "has no tool with this name" in response["error"]


@pytest.mark.parametrize(
    "settings",
    [
        {
            "timeout": timedelta(seconds=7),
            "retries": 3,
            "effect": "repeatable",
            "on_error": "raise",
            "deadline": timedelta(days=1),
            "heartbeat_timeout": timedelta(seconds=9),
            "hint": "Really?",
            "task_queue": "nobody-polls-this",
        },
        {"effect": "read"},
    ],
    ids=["most of them", "effect"],
)
async def test_changed_settings_of_a_tool_do_not_affect_a_pending_call(serve: Serve, settings: dict[str, Any]) -> None:
    """The settings were recorded when the call was made."""
    till = Till()
    end = await continued(serve, payer(till, PAY), payer(till, says("Paid."), **settings), "fc-1")
    assert (end.text, till.paid) == ("Paid.", [5])
    assert tool_responses(end.requests[0]) == [{"paid": 5}]


async def test_a_removed_confirmation_does_not_let_the_pending_call_run(serve: Serve) -> None:
    """The call still needs its answer, and a rejection still counts."""
    till = Till()

    async def reject(invocation: Invocation) -> None:
        await wait_for_calls(invocation, "fc-1")
        assert till.paid == []
        await invocation.reject("fc-1")

    after = payer(till, says("Not paid."), require_confirmation=False)
    end = await continued(serve, payer(till, PAY), after, "fc-1", answer=reject)
    assert (end.text, till.paid) == ("Not paid.", [])
    assert tool_responses(end.requests[0]) == [{"error": "This tool call is rejected."}]


def asks_from_inside(amount: int, tool_context: ToolContext) -> JsonObject:
    """Pay after an approval."""
    if tool_context.tool_confirmation is None:
        tool_context.request_confirmation(hint="Really?")
    return {"status": "asked"}


asks_from_inside.__name__ = "pay"


@pytest.mark.parametrize("change", ["confirmed-before", "by-a-rule", "without-context", "new-parameter"])
async def test_a_rejected_call_of_a_tool_that_no_longer_asks_does_not_run(serve: Serve, change: str) -> None:
    """The engine verifies the answer before the tool runs, because the tool no longer does."""
    paid = list[int]()

    def with_context(amount: int, tool_context: ToolContext) -> None:
        paid.append(amount)

    def plain(amount: int) -> None:
        paid.append(amount)

    def with_account(amount: int, account: str, tool_context: ToolContext) -> None:
        paid.append(amount)

    for function in (with_context, plain, with_account):
        function.__name__ = "pay"
    tools: dict[str, Any] = {
        "confirmed-before": FunctionTool(with_context, require_confirmation=True),
        "by-a-rule": with_context,
        "without-context": plain,
        "new-parameter": with_account,
    }
    rules = [ApprovalRule(ApprovalPolicy(), tools="pay")] if change == "by-a-rule" else []
    before = Agent(name="agent", model=ScriptedModel(PAY, says("I have asked.")), tools=[asks_from_inside])
    after = Agent(name="agent", model=ScriptedModel(says("Not paid.")), tools=[tools[change]], approval_rules=rules)
    end = await continued(serve, before, after, "fc-1", answer=lambda invocation: invocation.reject(comment="no"))
    assert (end.text, paid) == ("Not paid.", [])
    assert tool_responses(end.requests[0]) == [{"error": "This tool call is rejected.", "comment": "no"}]


async def test_an_added_confirmation_applies_from_the_next_call(serve: Serve) -> None:
    """Earlier calls run as they were made; new ones wait."""
    till = Till()
    before = Agent(
        name="agent", model=ScriptedModel(calls(("ask", {}))), tools=[LongRunningFunctionTool(ask), till.pay]
    )
    gated = [LongRunningFunctionTool(ask), FunctionTool(till.pay, require_confirmation=True)]
    after = Agent(name="agent", model=ScriptedModel(PAY, says("Paid.")), tools=gated)

    async def approve_both(invocation: Invocation) -> None:
        await invocation.approve("fc-1")
        await wait_for_calls(invocation, "fc-2")
        assert till.paid == []
        await invocation.approve("fc-2")

    end = await continued(serve, before, after, "fc-1", answer=approve_both)
    assert (end.text, till.paid) == ("Paid.", [5])


async def test_a_tool_with_another_signature_does_not_run_the_confirmed_call(serve: Serve) -> None:
    """The approver agreed to a call of the old tool; the model receives an error and may call the new one."""
    till, ran = Till(), list[Any]()

    def with_account(amount: int, account: str) -> None:
        ran.append((amount, account))

    with_account.__name__ = "pay"
    model = ScriptedModel(says("Sorry."))
    after = Agent(name="agent", model=model, tools=[FunctionTool(with_account, require_confirmation=True)])
    end = await continued(serve, payer(till, PAY), after, "fc-1")
    assert (end.text, ran, till.paid) == ("Sorry.", [], [])
    [response] = tool_responses(end.requests[0])
    assert response["error_type"] == "DigestMismatch"
    assert "its parameters changed after approval was requested" in response["error"]


async def test_a_plain_tool_that_became_long_running_answers_as_it_was_called(serve: Serve) -> None:
    """The call was made to a tool that returns its result, so nobody has to answer it."""
    till = Till()

    def pay(amount: int) -> JsonObject:
        till.paid.append(amount)
        return {"status": "queued"}

    model = ScriptedModel(says("Queued."), says("Queued twice."))
    after = Agent(name="agent", model=model, tools=[LongRunningFunctionTool(pay)])
    end = await continued(serve, payer(till, PAY), after, "fc-1")
    assert (end.text, till.paid) == ("Queued.", [5])
    assert tool_responses(end.requests[0]) == [{"status": "queued"}]


async def test_an_agent_that_became_a_sequence_cannot_continue_a_conversation(serve: Serve) -> None:
    """The invocation fails with a typed error, because a sequence has no model."""
    line = SequentialAgent(name="agent", sub_agents=[Agent(name="step", model=ScriptedModel())])
    async with serve(asker(calls(("ask", {}))), verify=False) as env:
        queue = env.client.task_queue
        invocation = await start_and_wait(env.client.start("agent", "go"), "fc-1")
        await wait_until_quiet(invocation)
    async with serve(line, task_queue=queue, adopt=[invocation]):
        await invocation.approve("fc-1")
        error = await catch_failure(invocation)
        assert (error.type, error.message) == (
            "InvalidAgent",
            "Agent 'agent' is a SequentialAgent now; it has no model to continue with.",
        )
