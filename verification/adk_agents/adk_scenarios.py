"""Scenarios with parts that only google-adk has. It is imported by the functions that build agents."""

import sys
from collections.abc import Callable
from typing import Any

from tests.paths import ROOT
from verification.differential.scenario import Cast, Scenario, calls

MCP_SERVER = ROOT / "tests" / "unit" / "tools" / "mcp_server.py"
CODE = "I compute it.\n```python\nprint(6 * 7)\n```\nThis is cut off."


def look() -> str:
    """Look."""
    return "seen"


def _agent(name: str, *replies: Any, fields: Callable[[Cast], Any], **more: Any) -> Scenario:
    def build(cast: Cast) -> Any:
        from google.adk.agents import LlmAgent

        return LlmAgent(name=cast.name, model=cast.model("main"), **fields(cast))

    return Scenario(name=name, agent=build, script={"main": replies, **more.pop("script", {})}, **more)


def _plan(_cast: Cast) -> Any:
    from google.adk.planners import PlanReActPlanner

    return {"planner": PlanReActPlanner(), "tools": [look]}


def _think(_cast: Cast) -> Any:
    from google.adk.planners import BuiltInPlanner
    from google.genai import types

    return {"planner": BuiltInPlanner(thinking_config=types.ThinkingConfig(thinking_budget=5)), "tools": [look]}


def _compute(_cast: Cast) -> Any:
    from google.adk.code_executors import UnsafeLocalCodeExecutor

    return {"code_executor": UnsafeLocalCodeExecutor()}


def _called_in_a_tool(cast: Cast) -> Any:
    from google.adk.agents import LlmAgent
    from google.adk.tools import AgentTool, ToolContext

    helper = LlmAgent(name="helper", model=cast.model("helper"))

    async def ask(question: str, tool_context: ToolContext) -> Any:
        """Ask the helper."""
        return await AgentTool(helper).run_async(args={"request": question}, tool_context=tool_context)

    return {"tools": [ask]}


def _request_changing(_cast: Cast) -> Any:
    from google.adk.examples.example import Example
    from google.adk.tools.base_toolset import BaseToolset
    from google.adk.tools.example_tool import ExampleTool
    from google.genai import types

    class Notes(BaseToolset):  # type: ignore[misc]  # google-adk is not in the environment that is checked
        async def get_tools(self, readonly_context: Any = None) -> list[Any]:
            return []

        async def process_llm_request(self, *, tool_context: Any, llm_request: Any) -> None:
            llm_request.append_instructions([f"You talk to {tool_context.user_id}."])

    example = Example(
        input=types.Content(role="user", parts=[types.Part(text="2?")]),
        output=[types.Content(role="model", parts=[types.Part(text="two")])],
    )
    return {"tools": [Notes(), ExampleTool([example])]}


def _toolsets(_cast: Cast) -> Any:
    from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
    from google.adk.tools.openapi_tool import OpenAPIToolset
    from mcp import StdioServerParameters

    server = StdioServerParameters(command=sys.executable, args=[str(MCP_SERVER), "stdio"])
    connection = StdioConnectionParams(server_params=server, timeout=30)
    pet = {"operationId": "getPet", "responses": {"200": {"description": "The pet."}}}
    pets = {"openapi": "3.0.0", "info": {"title": "pets", "version": "1"}, "paths": {"/pet": {"get": pet}}}
    return {
        "tools": [
            OpenAPIToolset(spec_dict=pets),
            McpToolset(connection_params=connection, tool_filter=["add"], tool_name_prefix="m"),
        ]
    }


def _plugins() -> Any:
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.plugins.global_instruction_plugin import GlobalInstructionPlugin
    from google.adk.plugins.logging_plugin import LoggingPlugin

    class Naming(BasePlugin):  # type: ignore[misc]  # google-adk is not in the environment that is checked
        async def before_run_callback(self, *, invocation_context: Any) -> None:
            assert invocation_context.agent.name == "adk_plugins"

        async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
            callback_context.state["agents"] = [*callback_context.state.get("agents", []), type(agent).__name__]

        async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> None:
            tool_context.state["tools"] = [*tool_context.state.get("tools", []), type(tool).__name__]

    return [GlobalInstructionPlugin("Be kind."), LoggingPlugin(), Naming("naming")]


def _replayable(agent: Any) -> Any:
    """Mark an agent or a class as replayable, except in google-adk's process, which runs all of them."""
    try:
        from waystation.adk import replayable
    except ImportError:
        return agent
    return replayable(agent)


def _story(cast: Cast) -> Any:
    """Return the custom agent of ADK's documentation: it loops over sub-agents, and retries if the tone is negative."""
    from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, SequentialAgent
    from google.adk.events import Event, EventActions
    from google.genai import types

    @_replayable
    class StoryFlow(BaseAgent):  # type: ignore[misc]  # google-adk is not in the environment that is checked
        writer: LlmAgent
        loop: LoopAgent
        checks: SequentialAgent

        async def _run_async_impl(self, ctx: Any) -> Any:
            async for event in self.writer.run_async(ctx):
                yield event
            if not ctx.session.state.get("story"):
                return
            tries = 0
            while tries < 3 and ctx.session.state.get("tone", "negative") == "negative":
                tries += 1
                content = types.Content(role="model", parts=[types.Part(text=f"try {tries}")])
                yield Event(author=self.name, content=content, actions=EventActions(state_delta={"tries": tries}))
                for agent in (self.loop, self.checks):
                    async for event in agent.run_async(ctx):
                        yield event
            texts = [event.content.parts[0].text for event in ctx.session.events if event.content]
            yield Event(author="narrator", content=types.Content(parts=[types.Part(text=f"{len(texts)} {texts[-1]}")]))

    def agent(name: str, **fields: Any) -> Any:
        return LlmAgent(name=name, model=cast.model(name), output_key=name, **fields)

    story = agent("story", tools=[look])
    loop = LoopAgent(name="loop", sub_agents=[agent("critic"), agent("reviser")], max_iterations=2)
    checks = SequentialAgent(name="checks", sub_agents=[agent("grammar"), agent("tone", instruction="Of {story}.")])
    return StoryFlow(name=cast.name, writer=story, loop=loop, checks=checks, sub_agents=[story, loop, checks])


def _stopping_loop(cast: Cast) -> Any:
    """Return a custom agent without sub-agents, which ends a loop."""
    from google.adk.agents import BaseAgent, LlmAgent, LoopAgent
    from google.adk.events import Event, EventActions

    class Check(BaseAgent):  # type: ignore[misc]  # google-adk is not in the environment that is checked
        async def _run_async_impl(self, ctx: Any) -> Any:
            stop = ctx.session.state.get("grade") == "pass"
            yield Event(author=self.name, actions=EventActions(escalate=stop))

    def see(callback_context: Any) -> None:
        callback_context.state["seen"] = callback_context.state.get("seen", 0) + 1

    check = _replayable(Check(name="check", before_agent_callback=see, after_agent_callback=see))
    grader = LlmAgent(name="grader", model=cast.model("main"), output_key="grade")
    return LoopAgent(name=cast.name, sub_agents=[grader, check], max_iterations=5)


def _parallel_bodies(cast: Cast) -> Any:
    """Return custom agents in a parallel agent. They save artifacts and write state of the user and the app."""
    from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent
    from google.adk.events import Event, EventActions
    from google.genai import types

    @_replayable
    class Note(BaseAgent):  # type: ignore[misc]  # google-adk is not in the environment that is checked
        async def _run_async_impl(self, ctx: Any) -> Any:
            for number, agent in enumerate(self.sub_agents):
                place = {"app_name": ctx.app_name, "user_id": ctx.user_id, "session_id": ctx.session.id}
                note = types.Part(text=f"note {number}")
                await ctx.artifact_service.save_artifact(**place, filename=f"{self.name}.txt", artifact=note)
                delta = {f"user:{self.name}": number, f"app:{self.name}": number}
                yield Event(author=self.name, branch=ctx.branch, actions=EventActions(state_delta=delta))
                async for event in agent.run_async(ctx):
                    yield event

    def note(name: str) -> Any:
        names = f"{name}_first", f"{name}_second"
        return Note(name=name, sub_agents=[LlmAgent(name=each, model=cast.model(each)) for each in names])

    return ParallelAgent(name=cast.name, sub_agents=[note("left"), note("right")])


ADK_SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _agent(
            "adk_planner",
            calls(("look", {}), text="/*PLANNING*/ look /*ACTION*/"),
            "/*REASONING*/ It is seen. /*FINAL_ANSWER*/ Seen.",
            fields=_plan,
        ),
        _agent("adk_thinking_planner", calls(("look", {})), "done", fields=_think),
        _agent("adk_code_executor", CODE, "It is 42.", fields=_compute),
        _agent(
            "adk_agent_called_in_a_tool",
            calls(("ask", {"question": "what?"})),
            "done",
            fields=_called_in_a_tool,
            script={"helper": ("that",)},
        ),
        _agent("adk_request_changing_tools", "done", fields=_request_changing),
        _agent("adk_toolsets", calls(("m_add", {"a": 1, "b": 2})), "three", fields=_toolsets),
        Scenario(
            name="adk_custom_agent",
            agent=_story,
            script={
                "story": (calls(("look", {})), "A cat."),
                "critic": ("Dull.", "Better.", "Good.", "Great."),
                "reviser": ("A big cat.", "A bigger cat.", "A red cat.", "A blue cat."),
                "grammar": ("fine", "fine"),
                "tone": ("negative", "positive"),
            },
            deviations={"quotations-are-introduced-otherwise": True},
        ),
        Scenario(name="adk_custom_agent_in_a_loop", agent=_stopping_loop, script={"main": ("fail", "pass")}),
        Scenario(
            name="adk_custom_agents_in_parallel",
            agent=_parallel_bodies,
            script={f"{name}_{place}": (place,) for name in ("left", "right") for place in ("first", "second")},
            deviations={"quotations-are-introduced-otherwise": True},
            parallel=True,
        ),
        _agent("adk_plugins", calls(("look", {})), "done", fields=lambda _: {"tools": [look]}, plugins=_plugins),
    )
}
