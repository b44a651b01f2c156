"""Tools, toolsets and callbacks change the request of a model call."""

from typing import Any

import pytest
from google.genai import types
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.server.conftest import Serve
from tests.server.workflows.author_code import failure
from tests.steps import run
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.function_tool import FunctionTool
from waystation.tools.google_search_tool import GoogleSearchTool
from waystation.tools.tool_context import ToolContext


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


class Advice(BaseTool):
    """A tool without a declaration that only adds to the instruction."""

    def __init__(self) -> None:
        super().__init__(name="advice", description="")

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: Any) -> None:
        """Add advice that depends on the state."""
        llm_request.append_instructions([f"Advice for {tool_context.state['name']}."])


class Careful(FunctionTool):
    """A tool that declares itself and adds to the instruction."""

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: Any) -> None:
        """Declare the tool, and add advice."""
        await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)
        llm_request.append_instructions(["Pay little."])


class Desk(BaseToolset):
    """A toolset that changes the request."""

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        """Return nothing."""
        return []

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: Any) -> None:
        """Add to the instruction."""
        llm_request.append_instructions(["Be at the desk."])


async def test_tools_and_toolsets_may_change_the_request(serve: Serve) -> None:
    """The model does not see a tool without a declaration, but its changes apply."""
    model = ScriptedModel(calls(("pay", {"amount": 1})), says("ok"))
    agent = Agent(name="a", model=model, tools=[Careful(pay), Advice(), Desk()])
    await run(serve(agent), "a", "x", state={"name": "Ann"})
    assert model.requests[0].system_instruction == (
        'You are an agent. Your internal name is "a".\n\nBe at the desk.\n\nPay little.\n\nAdvice for Ann.'
    )
    assert [tool["name"] for tool in model.requests[0].tools] == ["pay"]
    assert responses(model.requests[1]) == [("pay", {"paid": 1})]


async def test_the_providers_own_tools_survive_a_callback(serve: Serve) -> None:
    """Native tools stay in the request, because the provider runs them."""

    def look(callback_context: Any, llm_request: Any) -> None:
        assert llm_request.config.tools[1].google_search is not None
        llm_request.config.tools.append(types.Tool(url_context=types.UrlContext()))

    model = ScriptedModel(calls(("google_search", {})), says("ok"))
    agent = Agent(
        name="a",
        model="gemini-3.5-flash",
        tools=[pay, GoogleSearchTool()],
        before_model_callback=look,
    )
    await run(serve(agent, model=model), "a", "x")
    assert list(model.requests[0].native_tools) == [{"googleSearch": {}}, {"urlContext": {}}]
    [(_, response)] = responses(model.requests[1])
    assert "The tools you can call are: pay." in response["error"]


async def test_a_tool_that_only_a_callback_adds_is_refused(serve: Serve) -> None:
    """A tool that only a callback adds is refused, because no worker could run it."""

    def add(callback_context: Any, llm_request: Any) -> None:
        llm_request.append_tools([FunctionTool(pay)])

    async with serve(Agent(name="a", model=ScriptedModel(), before_model_callback=add)) as env:
        invocation = await env.client.start("a", "x")
        with pytest.raises(WorkflowFailureError) as failed:
            await invocation.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "ValueError"


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("contents", None, "`contents` of the request is None; it must be a list."),
        ("contents", "text", "`contents` of the request is a str; it must be a list."),
        ("contents", ["text"], "A callback set `contents[0]` to a str; use a genai Content instead."),
        ("config", None, "A callback set `config` to None; use a genai GenerateContentConfig instead."),
    ],
)
async def test_a_request_broken_by_a_callback_fails_at_once(
    serve: Serve, field: str, value: object, problem: str
) -> None:
    """The invocation fails without a retry; the message names the place."""

    def spoil(callback_context: Any, llm_request: Any) -> None:
        setattr(llm_request, field, value)

    async with serve(Agent(name="a", model=ScriptedModel(), before_model_callback=spoil)) as env:
        assert await failure(await env.client.start("a", "x")) == ("TypeError", problem)


async def test_a_response_broken_by_a_callback_fails_at_once(serve: Serve) -> None:
    """The invocation fails without a retry."""

    def spoil(callback_context: Any, llm_response: Any) -> None:
        llm_response.content = "text"

    async with serve(Agent(name="a", model=ScriptedModel(says("hi")), after_model_callback=spoil)) as env:
        assert await failure(await env.client.start("a", "x")) == (
            "TypeError",
            "A callback set `content` to a str; use a genai Content instead.",
        )


async def test_a_reply_broken_by_a_callback_is_not_the_models_mistake(serve: Serve) -> None:
    """The failure names the callback, because the model's reply was valid."""

    def spoil(callback_context: Any, llm_response: Any) -> None:
        llm_response.content.parts = "text"

    async with serve(Agent(name="a", model=ScriptedModel(says("fine")), after_model_callback=spoil)) as env:
        assert await failure(await env.client.start("a", "x")) == (
            "TypeError",
            "A callback returned invalid content for the model's reply: its parts are not a list of objects.",
        )
