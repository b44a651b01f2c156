"""Edited arguments are validated like the tool's input, and run as the approver wrote them."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.workflows.author_code import pay
from tests.steps import (
    answer_and_finish,
    approve_and_finish,
    reject_and_finish,
    start_and_get_call,
    start_and_wait,
    wait_for_calls,
    wait_until_quiet,
)
from waystation.agents import Agent, ApprovalRule, SequentialAgent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.core.errors import AnswerRefused, DigestMismatch, InvalidAnswer, NotAllowed
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.function_tool import FunctionTool


def clerk(tool: Any, args: JsonObject, name: str = "pay", **settings: Any) -> Agent:
    """Return an agent that makes one call."""
    model = ScriptedModel(calls((name, args)), says("Done."))
    return Agent(name="clerk", model=model, tools=[tool], **settings)


def tool_responses(agent: Agent) -> list[tuple[str, JsonObject]]:
    """Return the responses of the tools."""
    assert isinstance(agent.model, ScriptedModel)
    return responses(agent.model.requests[-1])


async def refused(invocation: Invocation, args: JsonObject, **answer: Any) -> AnswerRefused:
    """Send an edit that is refused, and return the reason."""
    with pytest.raises(AnswerRefused) as raised:
        await invocation.answer("edit", "fc-1", args=args, **answer)
    return raised.value


async def test_edited_arguments_are_converted_and_run(serve: Serve) -> None:
    """The record and the digest contain the converted arguments."""
    agent = clerk(FunctionTool(pay, require_confirmation=True), {"amount": 500, "made_up": True})
    async with serve(agent) as env:
        invocation, call = await start_and_get_call(env.client.start("clerk", "go"), "fc-1")
        await answer_and_finish(invocation, "edit", "fc-1", args={"amount": "50", "made_up": True}, digest=call.digest)
        log = await invocation.log()
    assert tool_responses(agent) == [
        ("pay", {"paid": 50, "edited": {"args": {"amount": {"from": 500, "to": 50}, "made_up": {"from": True}}}})
    ]
    assert log.state.calls["fc-1"].args == {"amount": 50}


@pytest.mark.parametrize("signal", [False, True])
async def test_invalid_arguments_are_refused_and_the_call_stays_pending(serve: Serve, signal: bool) -> None:
    """The sender of an update receives the error; the error of a signal is in the events."""
    agent = clerk(FunctionTool(pay, require_confirmation=True), {"amount": 500})
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        if signal:
            await invocation.answer("edit", "fc-1", args={"amuont": 5}, by="dana", signal=True)
            await wait_until_quiet(invocation)
            (event,) = [e for e in (await invocation.log()).state.events if e.custom_metadata]
            ignored = (event.custom_metadata or {})["ignored_answer"]
            assert (ignored["reason"], ignored["by"]) == ("InvalidAnswer", "dana")
            message = ignored["message"]
        else:
            error = await refused(invocation, {"amuont": 5})
            assert isinstance(error, InvalidAnswer)
            message = str(error)
        assert "do not fit 'pay': it has no parameter 'amuont'; parameter 'amount' is missing" in message
        await wait_for_calls(invocation, "fc-1")
        await approve_and_finish(invocation, "fc-1")
    assert tool_responses(agent) == [("pay", {"paid": 500})]


async def test_an_edit_cannot_bypass_a_rule(serve: Serve) -> None:
    """An approver of small amounts cannot turn one into a large amount; the opposite is allowed."""
    large, small = (
        ApprovalPolicy(approvers=("eve",), verified=False),
        ApprovalPolicy(approvers=("dana",), verified=False),
    )
    rules = [ApprovalRule(large, over={"amount": 1000}), ApprovalRule(small, over={"amount": 100})]
    agent = clerk(pay, {"amount": 500}, approval_rules=rules)
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        error = await refused(invocation, {"amount": 5000}, by="dana")
        assert isinstance(error, NotAllowed)
        assert "needs different approvers" in str(error)
        await answer_and_finish(invocation, "edit", "fc-1", args={"amount": 99}, by="dana")
    assert tool_responses(agent) == [
        ("pay", {"paid": 99, "edited": {"by": "dana", "args": {"amount": {"from": 500, "to": 99}}}})
    ]


async def test_an_unauthorized_approver_learns_nothing_about_arguments(serve: Serve) -> None:
    """Authorization is checked before content."""
    policy = ApprovalPolicy(approvers=("dana",), verified=False)
    agent = clerk(FunctionTool(pay, approval=policy), {"amount": 500})
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        error = await refused(invocation, {"amuont": 5}, by="mallory")
        assert isinstance(error, NotAllowed)
        assert "amount" not in str(error)
        await reject_and_finish(invocation, "fc-1", by="dana")


class Remote(BaseTool):
    """A tool that has only a schema."""

    def __init__(self) -> None:
        super().__init__(name="remote", description="Remote.")

    def _get_declaration(self) -> JsonObject | None:
        properties = {"count": {"type": "integer", "maximum": 10}}
        return {"name": "remote", "parametersJsonSchema": {"type": "object", "properties": properties}}

    async def run_async(self, *, args: JsonObject, tool_context: Any) -> Any:
        return args


class Remotes(BaseToolset):
    """A toolset with tools to which rules apply."""

    async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
        return [Remote()]


async def test_edited_arguments_of_other_tools_match_their_schema(serve: Serve) -> None:
    """Edits of a gated call of a toolset's tool are validated against the tool's schema."""
    agent = clerk(Remotes(), {"count": 1}, "remote", approval_rules=[ApprovalRule(ApprovalPolicy(), tools="rem*")])
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        assert "count: 11 is greater than the maximum of 10" in str(await refused(invocation, {"count": 11}))
        await answer_and_finish(invocation, "edit", "fc-1", args={"count": 9})
    assert tool_responses(agent) == [("remote", {"count": 9, "edited": {"args": {"count": {"from": 1, "to": 9}}}})]


def pay_with_fee(amount: int, fee: int = 0) -> dict[str, int]:
    """Pay."""
    return {"paid": amount + fee}


pay_with_fee.__name__ = "pay"

AGENT_GONE = Agent(name="other", model="x")
TOOL_GONE = Agent(name="clerk", model="x", tools=[Remote()])
NO_MODEL = SequentialAgent(name="clerk", sub_agents=[Agent(name="other", model="x")])
TOOL_CHANGED = Agent(name="clerk", model="x", tools=[FunctionTool(pay_with_fee, require_confirmation=True)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "kind", "problem"),
    [
        (AGENT_GONE, InvalidAnswer, "No agent is named 'clerk'"),
        (TOOL_GONE, InvalidAnswer, "agent 'clerk' no longer has a tool named 'pay'"),
        (NO_MODEL, InvalidAnswer, "agent 'clerk' no longer has tools"),
        (TOOL_CHANGED, DigestMismatch, "The parameters or the origin of 'pay' changed after call 'fc-1' was made"),
    ],
    ids=["agent-gone", "tool-gone", "no-model", "tool-changed"],
)
async def test_after_a_deployment_an_edit_is_refused_with_a_reason(
    serve: Serve, after: Agent | SequentialAgent, kind: type[AnswerRefused], problem: str
) -> None:
    """The call stays pending and can be rejected."""
    async with serve(clerk(FunctionTool(pay, require_confirmation=True), {"amount": 5}), verify=False) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        await wait_until_quiet(invocation)
    async with serve(after, task_queue=env.client.task_queue, verify=False):
        error = await refused(invocation, {"amount": 6})
        assert isinstance(error, kind)
        assert problem in str(error)
        await wait_for_calls(invocation, "fc-1")
        await invocation.cancel()
