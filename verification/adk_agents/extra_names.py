"""Use names of google-adk under Waystation's name, with an agent of Waystation, and print the results as JSON.

Runs in the environment that has google-adk and Waystation.
"""

# mypy: ignore-errors
# Type checkers do not know the names that come from google-adk.

import asyncio
import contextlib
import io
import json
import os
import sys
import tempfile
from typing import Any

from google.adk import Agent as AdkAgent
from google.adk.memory import InMemoryMemoryService
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types
from waystation.examples import Example
from waystation.tools.example_tool import ExampleTool
from waystation.tools.openapi_tool.auth import auth_helpers
from waystation.tools.toolbox_toolset import ToolboxToolset

from waystation import Agent, Event, ReadonlyContext, ToolContext
from waystation.activities.model_call.planning import can_change_reply, plan_reply, plan_request
from waystation.apps import App
from waystation.artifacts import FileArtifactService
from waystation.code_executors import UnsafeLocalCodeExecutor
from waystation.embedded import EmbeddedServer
from waystation.models.llm_request import LlmRequest
from waystation.planners import BuiltInPlanner, PlanReActPlanner
from waystation.plugins import LoggingPlugin
from waystation.runners import InMemoryRunner
from waystation.sessions import BACKGROUND
from waystation.testing import ScriptedModel, says
from waystation.tools import FunctionTool
from waystation.tools.services import Services
from waystation.tools.session_view import Session


def look() -> str:
    """Look."""
    return "seen"


def planned() -> Any:
    """Return a request and a reply after google-adk's planner has changed them."""
    planner = PlanReActPlanner()
    thought = types.Content(role="model", parts=[types.Part(text="hm", thought=True)])
    request = LlmRequest(model="m", contents=[thought])
    plan_request(Agent(name="planning", planner=planner).planner, ReadonlyContext(), request)
    parts = plan_reply(planner, ToolContext(), [types.Part(text="/*PLANNING*/look/*FINAL_ANSWER*/seen")])
    return [
        "/*PLANNING*/" in str(request.config.system_instruction),
        request.contents[0].parts[0].thought,
        [(part.text, part.thought) for part in parts],
        can_change_reply(planner),
        can_change_reply(BuiltInPlanner(thinking_config=types.ThinkingConfig())),
    ]


async def offered_tools() -> Any:
    """Return the tools of an agent with a tool of google-adk, and the instruction that this tool adds."""
    example = Example(input=types.UserContent("2?"), output=[types.ModelContent("two")])
    agent = Agent(name="a", tools=[ExampleTool([example]), FunctionTool(look)])
    request = LlmRequest(model="m")
    context = ToolContext(user_content={"role": "user", "parts": [{"text": "3?"}]}, session=Session(id="s1"))
    tools = await agent.canonical_tools()
    await tools[0].process_llm_request(tool_context=context, llm_request=request)
    return [[tool.name for tool in tools], "EXAMPLE 1" in str(request.config.system_instruction)]


async def saved(folder: str) -> Any:
    """Return an artifact that google-adk's service has stored."""
    services = Services(artifacts=FileArtifactService(root_dir=folder))
    context = ToolContext(
        function_call_id="fc-1", services=services, session=Session(id="s", app_name="a", user_id="u")
    )
    version = await context.save_artifact("note.txt", types.Part(text="hello"))
    part = await context.load_artifact("note.txt")
    return [version, part and part.text, await context.list_artifacts()]


async def remembered() -> Any:
    """Return the memories that google-adk's memory service finds of a session of Waystation."""
    session = Session(id="s", app_name="a", user_id="u", events=[Event(author="user", message="I like tea")])
    context = ToolContext(services=Services(memory=InMemoryMemoryService()), session=session)
    await context.add_session_to_memory()
    found = await context.search_memory("tea")
    return [memory.content.parts[0].text for memory in found.memories]


def missing() -> str:
    """Return the error for a name whose package google-adk does not install."""
    try:
        from waystation.integrations.slack import SlackRunner
    except ImportError as error:
        return str(error)
    return repr(SlackRunner)


async def coded() -> Any:
    """Return the texts and the code results that a program receives from an agent with a code executor and a plugin."""
    model = ScriptedModel(says("Compute.\n```tool_code\nprint(6 * 7)\n```"), says("It is 42."))
    agent = Agent(name="coder", model=model, code_executor=UnsafeLocalCodeExecutor())
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app = App(name="coding", root_agent=agent, plugins=[LoggingPlugin()])
        events = await InMemoryRunner(app=app).run_debug("6 times 7?", quiet=True)
    parts = [part for event in events for part in event.content.parts]
    return [
        [part.text for part in parts if part.text][-1],
        [part.function_response.response for part in parts if part.function_response],
        "Agent: coder" in printed.getvalue(),
    ]


async def ran() -> Any:
    """Return the replies of a runner of Waystation with an agent of google-adk."""
    adk_agent = AdkAgent(name="greeter", model=GreetingLlm(model="greeting"))
    events = await InMemoryRunner(adk_agent, app_name="greeting").run_debug("Hi", quiet=True)
    return [event.content.parts[0].text for event in events]


class GreetingLlm(BaseLlm):
    """A model of google-adk that greets."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        """Yield the greeting."""
        yield LlmResponse(content=types.ModelContent("Hello."))


async def programs() -> Any:
    """Return the results of the agents above on an embedded server."""
    async with EmbeddedServer() as server:
        os.environ["TEMPORAL_ADDRESS"] = server.address
        found = {"coded": await coded(), "ran": await ran()}
        await BACKGROUND.call(BACKGROUND.stop_workers())
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        found = {
            **asyncio.run(programs()),
            "planned": planned(),
            "shown": asyncio.run(offered_tools()),
            "saved": asyncio.run(saved(temporary)),
            "remembered": asyncio.run(remembered()),
            "modules": [ToolboxToolset.__module__, auth_helpers.__name__],
            "missing": missing(),
        }
    json.dump(found, sys.stdout)
