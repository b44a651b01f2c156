"""The built-in tools on a real server, and the adapters."""

import pytest
from google.genai import types
from langchain_core.tools import tool as langchain_tool
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.server.conftest import Serve
from tests.steps import run, start_and_finish, start_and_get_call, start_and_wait
from waystation import LangchainTool, exit_loop, get_user_choice, google_search, request_input, url_context
from waystation.agents import Agent, LoopAgent
from waystation.core.payload import JsonObject
from waystation.models.google_llm import Gemini
from waystation.testing import FakeGemini, ScriptedModel, calls, responses, says

GROUNDING: JsonObject = {"webSearchQueries": ["who won"]}


async def test_a_model_asks_the_user_and_continues_with_the_answer(serve: Serve) -> None:
    """The answer is the response to `adk_request_input`, of any shape."""
    model = ScriptedModel(calls(("adk_request_input", {"message": "Which city?"})), says("Bern it is."))
    async with serve(Agent(name="guide", model=model, tools=[request_input])) as env:
        invocation, pending = await start_and_get_call(env.client.start("guide", "Where to?"), "fc-1")
        assert (pending.kind, pending.tool, pending.args) == (
            "long_running",
            "adk_request_input",
            {"message": "Which city?"},
        )
        await invocation.respond({"city": "Bern"})
        assert (await invocation.result()).text == "Bern it is."
    assert responses(model.requests[-1]) == [("adk_request_input", {"city": "Bern"})]


async def test_a_choice_waits_without_another_model_call(serve: Serve) -> None:
    """The model is called after the user's choice."""
    model = ScriptedModel(calls(("get_user_choice", {"options": ["red", "green"]})), says("Green."))
    async with serve(Agent(name="painter", model=model, tools=[get_user_choice])) as env:
        invocation = await start_and_wait(env.client.start("painter", "Paint it."), "fc-1")
        assert len(model.requests) == 1
        await invocation.respond({"result": "green"})
        assert (await invocation.result()).text == "Green."
    assert responses(model.requests[-1]) == [("get_user_choice", {"result": "green"})]


async def test_exit_loop_ends_the_loop_without_another_model_call(serve: Serve) -> None:
    """Neither the agent that calls it nor the loop continues."""
    model = ScriptedModel(says("once"), calls(("exit_loop", {})), says("never said"))
    loop = LoopAgent(name="polish", sub_agents=[Agent(name="polisher", model=model, tools=[exit_loop])])
    await run(serve(loop), "polish", "Polish it.")
    assert len(model.requests) == 2


async def test_google_search_is_in_the_request_and_its_grounding_in_the_event(serve: Serve) -> None:
    """The provider runs the search, and the worker runs no part of it."""
    async with FakeGemini() as gemini:
        candidate: JsonObject = {
            "content": {"role": "model", "parts": [{"text": "Ann won."}]},
            "finishReason": "STOP",
            "groundingMetadata": GROUNDING,
        }
        gemini.reply(raw={"candidates": [candidate]})
        model = Gemini(api_key="key-for-tests", base_url=gemini.url, model="gemini-3-flash")
        async with serve(Agent(name="reporter", model=model, tools=[google_search, url_context])) as env:
            invocation = await env.client.start("reporter", "Who won?")
            assert (await invocation.result()).text == "Ann won."
            event = (await invocation.log()).state.events[-1]
        await model.close()
    assert gemini.requests[0].body["tools"] == [{"googleSearch": {}}, {"urlContext": {}}]
    assert event.to_json()["groundingMetadata"] == GROUNDING


async def test_a_model_of_another_provider_has_no_google_search(serve: Serve) -> None:
    """The invocation fails with ADK's error."""
    async with serve(Agent(name="reporter", model="gpt-5", tools=[google_search])) as env:
        with pytest.raises(WorkflowFailureError) as caught:
            await env.client.run("reporter", "Who won?")
    assert isinstance(caught.value.cause, ApplicationError)
    assert "Google search tool is not supported for model gpt-5" in str(caught.value.cause)


async def test_media_is_sent_inside_the_function_response(serve: Serve) -> None:
    """A turn that answers calls contains nothing else."""

    def draw(what: str) -> dict[str, object]:
        """Draw a picture."""
        return {"title": what, "picture": types.Part.from_bytes(data=b"abc", mime_type="image/png")}

    async with FakeGemini() as gemini:
        gemini.reply(calls=[("draw", {"what": "a cat"})])
        gemini.reply(text="Here.")
        model = Gemini(api_key="key-for-tests", base_url=gemini.url)
        async with serve(Agent(name="artist", model=model, tools=[draw])) as env:
            invocation = await start_and_finish(env.client.start("artist", "A cat, please."))
            drawn = (await invocation.log()).state.events[2].to_json()["content"]["parts"]
        await model.close()
    media = [{"inlineData": {"mimeType": "image/png", "data": "YWJj"}}]
    drawn_response = {"name": "draw", "response": {"title": "a cat"}, "parts": media}
    assert drawn == [{"functionResponse": {"id": "fc-1", **drawn_response}}]
    assert gemini.requests[1].body["contents"][-1] == {"role": "user", "parts": [{"functionResponse": drawn_response}]}


async def test_a_langchain_tool_is_an_activity_like_any_other(serve: Serve) -> None:
    """The summary and the activity have its name."""

    @langchain_tool
    def add(a: int, b: int = 2) -> int:
        """Add numbers."""
        return a + b

    model = ScriptedModel(calls(("add", {"a": 40})), says("42."))
    assert (
        await run(serve(Agent(name="clerk", model=model, tools=[LangchainTool(add)])), "clerk", "40 + 2?")
    ).text == "42."
    assert responses(model.requests[-1]) == [("add", {"result": 42})]
