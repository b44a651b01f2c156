"""Callbacks around tools: their allowed changes, and the events of their state. Source: adk-semantics 1.6."""

import asyncio
from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.workflows.author_code import agent_events, fails, failure, pay
from tests.steps import run
from waystation.agents import Agent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.apps import App
from waystation.core.budget import Budget
from waystation.plugins import BasePlugin
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import BaseTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.outcome import FailedAfterEffect
from waystation.tools.tool_context import ToolContext


async def test_before_tool_may_change_the_arguments_or_answer(serve: Serve) -> None:
    """An empty dictionary is an answer, too; state of the callback is in the response's event. Source: 1.6."""

    def before(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any] | None:
        tool_context.state[f"saw {args['amount']}"] = tool_context.function_call_id
        if args["amount"] == 1:
            return {}
        args["amount"] += 100
        return None

    model = ScriptedModel(calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), says("Paid."))
    async with serve(Agent(name="payer", model=model, tools=[pay], before_tool_callback=before)) as env:
        invocation = await env.client.start("payer", "pay")
        called, returned, _ = await agent_events(invocation)
    assert [call["args"] for call in called.function_calls()] == [{"amount": 1}, {"amount": 2}]
    assert responses(model.requests[1]) == [("pay", {}), ("pay", {"paid": 102})]
    assert returned.actions.state_delta == {"saw 1": "fc-1", "saw 2": "fc-2"}


async def test_after_tool_sees_the_raw_value_and_may_replace_it(serve: Serve) -> None:
    """`after_tool` sees the raw value, an answer of a callback, or a replaced error, and may replace each."""
    values: list[Any] = []

    def shout() -> str:
        """Shout."""
        return "hey"

    def after(tool: Any, args: Any, tool_context: ToolContext, tool_response: Any) -> Any:
        values.append(tool_response)
        return f"{tool_response}!" if tool_response == "hey" else None

    def rescue(tool: Any, args: Any, tool_context: ToolContext, error: Exception) -> dict[str, str]:
        return {"rescued": str(error)}

    model = ScriptedModel(calls(("shout", {}), ("fails", {})), says("Done."))
    agent = Agent(
        name="crier",
        model=model,
        tools=[shout, fails],
        after_tool_callback=after,
        on_tool_error_callback=[lambda tool, args, tool_context, error: None, rescue],
    )
    await run(serve(agent), "crier", "cry")
    assert responses(model.requests[1]) == [("shout", {"result": "hey!"}), ("fails", {"rescued": "out of order"})]
    assert sorted(map(str, values)) == ["hey", "{'rescued': 'out of order'}"]


async def test_callbacks_may_answer_for_an_unknown_tool(serve: Serve) -> None:
    """`on_tool_error` receives ADK's ValueError; without an answer the model receives ADK's text."""

    def rescue(tool: Any, args: Any, tool_context: ToolContext, error: Exception) -> dict[str, str] | None:
        return {"try": "pay"} if tool.name == "buy" and isinstance(error, ValueError) else None

    model = ScriptedModel(calls(("buy", {}), ("sell", {})), says("Done."))
    await run(serve(Agent(name="payer", model=model, tools=[pay], on_tool_error_callback=rescue)), "payer", "buy")
    (_, bought), (_, sold) = responses(model.requests[1])
    assert bought == {"try": "pay"}
    assert sold["error"].startswith("Invoking `sell()` failed as no tool with that name is available.")


async def test_an_exception_of_a_tool_callback_is_reported_like_the_tools_own(serve: Serve) -> None:
    """The tool does not run after a failure before it; `on_error="raise"` makes it fatal."""
    ran: list[int] = []

    def work() -> None:
        """Work."""
        ran.append(1)

    def broken(tool: Any, args: Any, tool_context: ToolContext) -> None:
        raise RuntimeError("not now")

    model = ScriptedModel(calls(("work", {})), says("Done."))
    strict = FunctionTool(work, on_error="raise")
    async with serve(
        Agent(name="worker", model=model, tools=[work], before_tool_callback=broken),
        Agent(name="strict", model=ScriptedModel(calls(("work", {}))), tools=[strict], before_tool_callback=broken),
    ) as env:
        await env.client.run("worker", "work")
        assert await failure(await env.client.start("strict", "x")) == ("RuntimeError", "The tool 'work' raised.")
    assert responses(model.requests[1]) == [("work", {"error": "not now", "error_type": "RuntimeError"})]
    assert ran == []


@pytest.mark.parametrize("by_plugin", [False, True])
async def test_an_error_of_a_callback_after_the_tool_has_the_tools_result(serve: Serve, by_plugin: bool) -> None:
    """The model must neither pay again because a metrics service failed, nor believe that a failed tool ran."""

    class Counting(BasePlugin):
        async def after_tool_callback(self, **_: Any) -> None:
            raise ValueError("no metrics")

    def count(tool: Any, args: Any, tool_context: ToolContext, tool_response: Any) -> None:
        raise ValueError("no metrics")

    def rescue(tool: Any, args: Any, tool_context: ToolContext, error: Exception) -> None:
        raise ValueError("no rescue")

    helper = Agent(name="helper", model=ScriptedModel(says("Helped.")), output_key="help")
    model = ScriptedModel(calls(("pay", {"amount": 5}), ("fails", {}), ("helper", {"request": "?"})), says("Done."))
    agent = Agent(name="payer", model=model, tools=[pay, fails, AgentTool(helper)], on_tool_error_callback=rescue)
    agent.after_tool_callback = None if by_plugin else count
    plugins: list[BasePlugin] = [Counting(name="counting")] if by_plugin else []
    async with serve(App(name="shop", root_agent=agent, plugins=plugins)) as env:
        invocation = await env.client.start("payer", "pay")
        await invocation.result()
        state = (await invocation.log()).state.session.values
    (_, paid), (_, failed), (_, helped) = responses(model.requests[-1])
    assert paid["error"].startswith("The tool ran, but `after_tool_callback` raised: ")
    assert "no metrics" in paid["error"]
    assert paid["error"].endswith("Do not call it again for this reason alone.")
    assert (paid["result"], helped["result"], state["help"]) == ({"paid": 5}, {"result": "Helped."}, "Helped.")
    assert failed == {
        "error": "no rescue", "error_type": "ValueError",
        "result": {"error": "out of order", "error_type": "ValueError"},
    }  # fmt: skip


async def test_a_callback_may_answer_a_gated_call_before_anyone_is_asked(serve: Serve) -> None:
    """`before_tool` runs when the call is made, and again after the approval, as in ADK."""
    amounts: list[int] = []

    def before(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> dict[str, str] | None:
        amounts.append(args["amount"])
        return {"error": "too much"} if args["amount"] > 100 else None

    gated = FunctionTool(pay, require_confirmation=True)
    model = ScriptedModel(calls(("pay", {"amount": 900})), calls(("pay", {"amount": 9})), says("Done."))
    async with serve(Agent(name="payer", model=model, tools=[gated], before_tool_callback=before)) as env:
        invocation = await env.client.start("payer", "pay")
        async for log in invocation.follow():
            if log.state.pending():
                break
        await invocation.approve("fc-2")
        await invocation.result()
    assert responses(model.requests[-1]) == [("pay", {"error": "too much"}), ("pay", {"paid": 9})]
    assert amounts == [900, 9, 9]


async def test_an_agent_called_as_a_tool_passes_through_tool_callbacks(serve: Serve) -> None:
    """`before_tool` may change the request; `after_tool` sees the text after the child's state was merged."""
    values: list[Any] = []

    def before(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> None:
        args["request"] += ", please"

    def after(tool: Any, args: Any, tool_context: ToolContext, tool_response: Any) -> str:
        values.append((tool_response, tool_context.state.get("draft")))
        tool_context.state["checked"] = True
        return f"checked: {tool_response}"

    child_model = ScriptedModel(says("a text"))
    child = Agent(name="writer", model=child_model, output_key="draft")
    model = ScriptedModel(calls(("writer", {"request": "write"})), says("Done."))
    boss = Agent(
        name="boss", model=model, tools=[AgentTool(child)], before_tool_callback=before, after_tool_callback=after
    )
    async with serve(boss) as env:
        invocation = await env.client.start("boss", "go")
        _, returned, _ = await agent_events(invocation)
    assert child_model.requests[0].contents == [{"role": "user", "parts": [{"text": "write, please"}]}]
    assert responses(model.requests[1]) == [("writer", {"result": "checked: a text"})]
    assert values == [("a text", "a text")]
    assert returned.actions.state_delta == {"draft": "a text", "checked": True}


async def test_a_callback_may_answer_for_a_called_agent(serve: Serve) -> None:
    """No child invocation starts."""
    child_model = ScriptedModel()
    model = ScriptedModel(calls(("writer", {"request": "write"})), says("Done."))
    boss = Agent(
        name="boss",
        model=model,
        tools=[AgentTool(Agent(name="writer", model=child_model))],
        before_tool_callback=lambda tool, args, tool_context: {"cached": True},
    )
    await run(serve(boss), "boss", "go")
    assert responses(model.requests[1]) == [("writer", {"cached": True})]
    assert child_model.requests == []


async def test_callbacks_run_around_all_attempts_of_a_tool(serve: Serve) -> None:
    """For a tool with the effect `once` they run once; state of a failed attempt is dropped."""
    order: list[str] = []

    def before(tool: Any, args: Any, tool_context: ToolContext) -> None:
        order.append("before")
        tool_context.state["opened"] = 1

    def flaky(tool_context: ToolContext) -> str:
        """Work at the second attempt."""
        order.append(f"attempt {tool_context.attempt}, opened {tool_context.state['opened']}")
        tool_context.state[f"attempt {tool_context.attempt}"] = True
        if tool_context.attempt == 1:
            raise OSError
        return "worked"

    def after(tool: Any, args: Any, tool_context: ToolContext, tool_response: Any) -> None:
        order.append(f"after {tool_response}")

    agent = Agent(
        name="worker",
        model=ScriptedModel(calls(("flaky", {})), says("Done.")),
        tools=[FunctionTool(flaky, retries=1, effect="once")],
        before_tool_callback=before,
        after_tool_callback=after,
    )
    result = await run(serve(agent), "worker", "work")
    assert order == ["before", "attempt 1, opened 1", "attempt 2, opened 1", "after worked"]
    assert result.state_delta == {"opened": 1, "attempt 2": True}


async def test_a_callback_may_answer_for_a_tool_that_took_too_long(serve: Serve) -> None:
    """`on_tool_error` receives a TimeoutError; without an answer the model learns of the timeout."""

    async def slow() -> None:
        """Never return."""
        await asyncio.Event().wait()

    def rescue(tool: Any, args: Any, tool_context: ToolContext, error: Exception) -> dict[str, str]:
        return {"rescued": type(error).__name__}

    model = ScriptedModel(calls(("slow", {})), says("Done."))
    tool = FunctionTool(slow, timeout=timedelta(milliseconds=50))
    await run(serve(Agent(name="worker", model=model, tools=[tool], on_tool_error_callback=rescue)), "worker", "work")
    assert responses(model.requests[1]) == [("slow", {"rescued": "TimeoutError"})]


async def test_a_transfer_passes_through_tool_callbacks(serve: Serve) -> None:
    """A transfer is an ordinary tool call, which a callback may answer."""
    arguments: list[dict[str, Any]] = []

    def before(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> dict[str, str] | None:
        arguments.append(dict(args))
        return {"error": "not yet"} if len(arguments) == 1 else None

    support = Agent(name="support", model=ScriptedModel(says("On my way.")))
    over = calls(("transfer_to_agent", {"agent_name": "support"}))
    model = ScriptedModel(over, over)
    result = await run(
        serve(Agent(name="desk", model=model, sub_agents=[support], before_tool_callback=before)), "desk", "fire!"
    )
    assert (result.text, result.next_agent) == ("On my way.", "support")
    assert arguments == [{"agent_name": "support"}] * 2
    assert responses(model.requests[1]) == [("transfer_to_agent", {"error": "not yet"})]


async def test_author_code_sees_its_invocation(serve: Serve) -> None:
    """Every context has the same conversation, user and run settings."""
    contexts: list[Any] = []

    def look(context: ReadonlyContext) -> str:
        session = context.session
        contexts.append((context.agent_name, context.user_id, session.id, session.app_name, len(session.events)))
        contexts.append((context.run_config.max_llm_calls, dict(context.custom_metadata), context.branch))
        return "Look around."

    def tool(tool_context: ToolContext) -> None:
        """Look around."""
        look(tool_context)

    agent = Agent(
        name="scout",
        model=ScriptedModel(calls(("tool", {})), says("Done.")),
        instruction=look,
        tools=[tool],
        before_agent_callback=lambda callback_context: look(callback_context) and None,
        after_agent_callback=lambda callback_context: look(callback_context) and None,
    )
    await run(
        serve(agent),
        "scout",
        "go",
        user_id="ann",
        session_id="s-1",
        metadata={"trace": "t"},
        budget=Budget(max_llm_calls=9),
    )
    where = [("scout", "ann", "s-1", "waystation", events) for events in (1, 1, 2, 3, 4)]
    assert contexts[::2] == where
    assert contexts[1::2] == [(9, {"trace": "t"}, None)] * 5


async def test_the_log_has_the_place_where_a_tool_raised(serve: Serve, logs: list[MutableMapping[str, Any]]) -> None:
    """The author's line is logged; only the model receives the exception's text, which may quote the conversation."""
    model = ScriptedModel(calls(("fails", {})), says("done"))
    async with serve(Agent(name="clerk", model=model, tools=[fails])) as env:
        await (await env.client.start("clerk", "go")).result()
    (raised,) = (entry for entry in logs if entry["event"] == "tool_call.raised")
    line = fails.__code__.co_firstlineno + 2
    assert (raised["error_type"], raised["place"]) == ("ValueError", f"{fails.__code__.co_filename}:{line}")


async def test_a_tool_without_a_coroutine_function_is_reported(serve: Serve) -> None:
    """The error names the class of the tool."""

    class Plain(BaseTool):
        def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
            return None

    model = ScriptedModel(calls(("plain", {})), says("done"))
    async with serve(Agent(name="clerk", model=model, tools=[Plain(name="plain", description="Plain.")])) as env:
        await (await env.client.start("clerk", "go")).result()
    [(_, response)] = responses(model.requests[1])
    assert response["error"] == "`run_async` of Plain returned None; make it an `async def`."


async def test_a_tool_whose_result_cannot_be_converted_does_not_run_again(serve: Serve) -> None:
    """An adapter fails after the effect. The call has retries left, and the model receives the tool's result."""
    ran: list[int] = []

    class Adapted(BaseTool):
        async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
            ran.append(1)
            raise FailedAfterEffect(KeyError("widgets"), {"receipt": "R-1"})

    tool = Adapted(name="pay", description="Pay.")
    tool.effect, tool.retries = "once", 2
    model = ScriptedModel(calls(("pay", {})), says("Done."))
    await run(serve(Agent(name="payer", model=model, tools=[tool])), "payer", "pay")
    ((_, paid),) = responses(model.requests[1])
    assert (ran, paid["result"], paid["error"][:14]) == ([1], {"receipt": "R-1"}, "The tool ran, ")
