"""The policy of a pending call is recorded, and applies to what runs."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tests.server.conftest import Serve
from tests.server.workflows.author_code import pay
from tests.steps import (
    answer_and_finish,
    approve_and_finish,
    run,
    start_and_get_call,
    start_and_wait,
    wait_for_calls,
)
from waystation.agents import Agent, ApprovalRule
from waystation.apps import App
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import Call
from waystation.core.log import ModelReplied
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.approval import parameters_digest
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext

POLICY = ApprovalPolicy(deadline=timedelta(hours=1), comment=True)


async def recorded(invocation: Invocation) -> list[Call]:
    """Return the recorded calls of all replies."""
    entries = (await invocation.log()).entries
    return [call for entry in entries if isinstance(entry.body, ModelReplied) for call in entry.body.reply.calls]


def clerk(*reply_calls: tuple[str, JsonObject], **settings: Any) -> Agent:
    """Return an agent that makes these calls at once."""
    return Agent(name="clerk", model=ScriptedModel(calls(*reply_calls), says("Done.")), **settings)


class Ruling(BaseModel):
    granted: bool


def order(part: str) -> None:
    """Order a part."""


async def test_the_policy_is_recorded_with_the_call(serve: Serve) -> None:
    """A call that needs approval has its policy and the digest of the tool's parameters; other calls have neither."""
    paying = FunctionTool(pay, approval=POLICY)
    ordering = LongRunningFunctionTool(order, response_schema=Ruling)

    def look(where: str) -> str:
        """Look."""
        return where

    agent = clerk(
        ("pay", {"amount": 5}), ("order", {"part": "x"}), ("look", {"where": "y"}), tools=[paying, ordering, look]
    )
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1", "fc-2")
        paid, ordered, looked = await recorded(invocation)
        await invocation.answer("approve", "fc-1", comment="ok")
        await invocation.respond({"granted": True}, "fc-2")
        await invocation.result()
    assert (paid.approval, paid.declared, paid.effect) == (POLICY, parameters_digest(paying), "once")
    assert (ordered.approval, ordered.declared) == (None, parameters_digest(ordering))
    assert (ordered.response_schema or {})["required"] == ["granted"]
    assert (looked.approval, looked.declared, looked.response_schema) == (None, None, None)


async def test_a_large_response_schema_is_not_in_the_memo(serve: Serve) -> None:
    """A large response schema is read with the call itself."""
    schema = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(100)}}
    tool = LongRunningFunctionTool(order, response_schema=schema)
    async with serve(clerk(("order", {"part": "x"}), tools=[tool])) as env:
        invocation, listed = await start_and_get_call(env.client.start("clerk", "go"), "fc-1")
        pending_call = await env.client.approvals.get(listed.approval_id)
        await invocation.cancel()
    assert (list(listed.response_schema or {}), pending_call.response_schema) == (["omitted_bytes"], schema)


async def test_the_rules_of_an_agent_precede_those_of_its_app(serve: Serve) -> None:
    """The app's rules apply to every agent of the tree."""
    by_agent, by_app = ApprovalPolicy(deadline=timedelta(hours=1)), ApprovalPolicy(deadline=timedelta(hours=2))
    agent = clerk(
        ("pay", {"amount": 500}),
        ("pay", {"amount": 5}),
        tools=[pay],
        approval_rules=[ApprovalRule(by_agent, tools="pay", over={"amount": 100})],
    )
    app = App(name="desk", root_agent=agent, approval_rules=[ApprovalRule(by_app, unless_effect="read")])
    async with serve(app) as env:
        invocation = await env.client.start("clerk", "go")
        first, second = await wait_for_calls(invocation, "fc-1", "fc-2")
        assert [call.approval for call in await recorded(invocation)] == [by_agent, by_app]
        assert (first.kind, second.kind) == ("confirmation", "confirmation")
        await invocation.approve("fc-1")
        await approve_and_finish(invocation, "fc-2")
    assert responses(agent.model.requests[-1]) == [("pay", {"paid": 500}), ("pay", {"paid": 5})]  # type: ignore[union-attr]  # a ScriptedModel


@pytest.mark.parametrize("callback", [None, lambda tool, args, tool_context: None])
async def test_rules_do_not_apply_to_transfers(serve: Serve, callback: Any) -> None:
    """Rules apply to neither transfers nor structured answers, because both change nothing. Callbacks see transfers as
    tool calls.
    """
    rule = ApprovalRule(POLICY)
    expert = Agent(
        name="expert",
        model=ScriptedModel(calls(("set_model_response", {"granted": True}))),
        tools=[pay],
        output_schema=Ruling,
        before_tool_callback=callback,
    )
    desk = Agent(
        name="desk",
        model=ScriptedModel(calls(("transfer_to_agent", {"agent_name": "expert"}))),
        sub_agents=[expert],
        before_tool_callback=callback,
    )
    result = await run(serve(App(name="desk", root_agent=desk, approval_rules=[rule])), "desk", "go")
    assert result.text == '{"granted": true}'


async def test_arguments_changed_by_callbacks_are_displayed_and_run(serve: Serve) -> None:
    """The callback runs again before the tool and changes nothing then."""

    def rounded(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> None:
        args["amount"] = round(args["amount"], -2)

    agent = clerk(
        ("pay", {"amount": 149}), tools=[FunctionTool(pay, require_confirmation=True)], before_tool_callback=rounded
    )
    async with serve(agent) as env:
        invocation, call = await start_and_get_call(env.client.start("clerk", "go"), "fc-1")
        assert call.args == {"amount": 100}
        await approve_and_finish(invocation, "fc-1", digest=call.digest)
        (called,) = [
            c for event in (await invocation.log()).state.events for c in event.function_calls() if c["id"] == "fc-1"
        ]
    assert called["args"] == {"amount": 149}  # the model's own words stay
    assert responses(agent.model.requests[-1]) == [("pay", {"paid": 100})]  # type: ignore[union-attr]  # as above


async def test_a_tool_that_asks_displays_its_own_arguments(serve: Serve) -> None:
    """A tool that asks displays the arguments of its question."""

    def book(days: int, tool_context: ToolContext) -> dict[str, int]:
        """Book."""
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint=f"{days} days?")
            return {"asked": days}
        return {"booked": days}

    def at_least_two(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> None:
        args["days"] = max(args["days"], 2)

    tool = FunctionTool(book, approval=POLICY, require_confirmation=lambda: False)
    agent = clerk(("book", {"days": 1}), tools=[tool], before_tool_callback=at_least_two)
    async with serve(agent) as env:
        invocation, call = await start_and_get_call(env.client.start("clerk", "go"), "fc-1")
        assert (call.hint, call.args) == ("2 days?", {"days": 2})
        await answer_and_finish(invocation, "approve", "fc-1", comment="ok", digest=call.digest)
    assert responses(agent.model.requests[-1])[-1] == ("book", {"booked": 2, "comment": "ok"})  # type: ignore[union-attr]  # as above


async def test_a_callback_cannot_take_a_call_past_a_rule(serve: Serve) -> None:
    """Nobody approved the changed arguments, so the tool does not run."""

    def more(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> None:
        args["amount"] *= 100

    rule = ApprovalRule(POLICY, over={"amount": 100})
    agent = clerk(("pay", {"amount": 5}), tools=[pay], approval_rules=[rule], before_tool_callback=more)
    await run(serve(agent), "clerk", "go")
    ((_, response),) = responses(agent.model.requests[-1])  # type: ignore[union-attr]  # as above
    assert response["error_type"] == "ApprovalNeeded"
