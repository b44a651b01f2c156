"""Plugins apply to every agent of an app. Source: adk-semantics 1.7 and 9.4."""

from typing import Any

from google.genai import types

from tests.server.conftest import Serve
from tests.server.workflows.author_code import content, fails, pay
from tests.steps import run
from waystation.agents import Agent
from waystation.apps import App
from waystation.plugins import BasePlugin, ReflectAndRetryToolPlugin
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.tool_context import CallbackContext, ToolContext


class Noting(BasePlugin):
    """A plugin that records its hooks."""

    def __init__(self, order: list[str]) -> None:
        super().__init__("noting")
        self._order = order

    async def on_user_message_callback(self, *, invocation_context: Any, user_message: Any) -> None:
        self._order.append(f"plugin on_user_message {user_message.parts[0].text}")

    async def before_run_callback(self, *, invocation_context: Any) -> None:
        self._order.append("plugin before_run")

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        self._order.append("plugin after_run")

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        self._order.append(f"plugin before_agent {agent.name}")

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        self._order.append(f"plugin after_agent {agent.name}")

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        self._order.append("plugin before_model")

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        self._order.append("plugin after_model")

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> None:
        self._order.append(f"plugin before_tool {tool.name} {tool_args}")

    async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> None:
        self._order.append(f"plugin after_tool {result}")


def noting(order: list[str]) -> dict[str, Any]:
    """Return callbacks of every kind that record their calls; each has its own parameter names."""

    def before_agent(ctx: CallbackContext) -> None:
        order.append("before_agent")

    async def after_agent(callback_context: CallbackContext) -> None:
        order.append("after_agent")

    def before_model(callback_context: CallbackContext, llm_request: Any) -> None:
        order.append("before_model")

    def after_model(callback_context: CallbackContext, llm_response: Any) -> None:
        order.append("after_model")

    def before_tool(tool: Any, args: Any, tool_context: ToolContext) -> None:
        order.append("before_tool")

    def after_tool(tool: Any, args: Any, tool_context: ToolContext, tool_response: Any) -> None:
        order.append("after_tool")

    return {
        "before_agent_callback": before_agent,
        "after_agent_callback": after_agent,
        "before_model_callback": before_model,
        "after_model_callback": after_model,
        "before_tool_callback": before_tool,
        "after_tool_callback": after_tool,
    }


async def test_callbacks_run_in_adks_order_each_once(serve: Serve) -> None:
    """Plugins run before the agent's own callbacks; source: adk-semantics 9.4."""
    order: list[str] = []
    model = ScriptedModel(calls(("pay", {"amount": 5})), says("Paid."))
    payer = Agent(name="payer", model=model, tools=[pay], **noting(order))
    assert (
        await run(serve(App(name="shop", root_agent=payer, plugins=[Noting(order)])), "payer", "pay 5")
    ).text == "Paid."
    around_model = ["plugin before_model", "before_model", "plugin after_model", "after_model"]
    assert order == [
        "plugin on_user_message pay 5",
        "plugin before_run",
        "plugin before_agent payer",
        "before_agent",
        *around_model,
        "plugin before_tool pay {'amount': 5}",
        "before_tool",
        "plugin after_tool {'paid': 5}",
        "after_tool",
        *around_model,
        "plugin after_agent payer",
        "after_agent",
        "plugin after_run",
    ]


async def test_before_run_may_answer_for_the_whole_invocation(serve: Serve) -> None:
    """A plugin answers before any agent is entered."""

    class Closed(BasePlugin):
        async def before_run_callback(self, *, invocation_context: Any) -> types.Content:
            invocation_context.state["closed"] = True
            return content("Closed.")

        async def after_run_callback(self, *, invocation_context: Any) -> None:
            invocation_context.state["over"] = True

    model = ScriptedModel()
    app = App(name="shop", root_agent=Agent(name="clerk", model=model), plugins=[Closed("closed")])
    result = await run(serve(app), "clerk", "hello")
    assert (result.text, result.state_delta, model.requests) == ("Closed.", {"closed": True, "over": True}, [])


async def test_plugins_see_the_end_even_if_callbacks_answered(serve: Serve) -> None:
    """The agent's own `after_agent` does not run, because the agent did not."""
    order: list[str] = []
    clerk = Agent(
        name="clerk",
        model=ScriptedModel(),
        before_agent_callback=lambda callback_context: content("Closed."),
        after_agent_callback=lambda callback_context: order.append("after_agent"),
    )
    assert (
        await run(serve(App(name="shop", root_agent=clerk, plugins=[Noting(order)])), "clerk", "hello")
    ).text == "Closed."
    assert order == [
        "plugin on_user_message hello",
        "plugin before_run",
        "plugin before_agent clerk",
        "plugin after_run",
    ]


async def test_plugins_apply_to_called_agents_by_default(serve: Serve) -> None:
    """`include_plugins=False` excludes the called agent."""
    order: list[str] = []
    with_them = Agent(name="seen", model=ScriptedModel(says("1")))
    without = Agent(name="unseen", model=ScriptedModel(says("2")))
    model = ScriptedModel(calls(("seen", {"request": "a"}), ("unseen", {"request": "b"})), says("Done."))
    boss = Agent(name="boss", model=model, tools=[AgentTool(with_them), AgentTool(without, include_plugins=False)])
    await run(serve(App(name="firm", root_agent=boss, plugins=[Noting(order)])), "boss", "go")
    assert [line for line in order if "before_agent" in line] == [
        "plugin before_agent boss",
        "plugin before_agent seen",
    ]


async def test_reflection_lets_the_model_try_again_a_bounded_number_of_times(serve: Serve) -> None:
    """The plugin answers an exception with guidance, and raises it after `max_retries`. Source: 1.7."""
    tries = [calls(("fails", {})) for _ in range(3)]
    model = ScriptedModel(*tries, says("I give up."))
    agent = Agent(name="worker", model=model, tools=[fails])
    result = await run(
        serve(App(name="app", root_agent=agent, plugins=[ReflectAndRetryToolPlugin(max_retries=2)])), "worker", "work"
    )
    tool_results = [response for _, response in responses(model.requests[-1])]
    assert [(r.get("retry_count"), r["error_type"]) for r in tool_results] == [
        (1, "ValueError"),
        (2, "ValueError"),
        (None, "RuntimeError"),
    ]
    assert tool_results[0]["response_type"] == "ERROR_HANDLED_BY_REFLECT_AND_RETRY_PLUGIN"
    assert (result.text, result.state_delta) == ("I give up.", {})
