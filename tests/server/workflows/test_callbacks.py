"""Callbacks around agents and models may make these changes, with these events.

Source: adk-semantics 6.3 and 9.4.
"""

import math
from collections.abc import MutableMapping
from typing import Any

from google.genai import types

from tests.server.conftest import Serve
from tests.server.workflows.author_code import agent_events, content, failure, pay, texts_of
from tests.steps import run
from waystation.agents import Agent, SequentialAgent
from waystation.apps import App
from waystation.core.errors import ModelRefused
from waystation.models import LlmResponse
from waystation.plugins import BasePlugin
from waystation.testing import ScriptedModel, says
from waystation.tools.tool_context import CallbackContext


async def test_before_agent_may_answer_for_the_agent(serve: Serve) -> None:
    """An answer of `before_agent` replaces the model, the children and `after_agent`."""
    model = ScriptedModel()
    order: list[str] = []
    quiet = Agent(
        name="quiet",
        model=model,
        before_agent_callback=lambda callback_context: content("Closed today."),
        after_agent_callback=lambda callback_context: order.append("after"),
    )
    team = SequentialAgent(name="team", sub_agents=[quiet, Agent(name="next", model=ScriptedModel(says("Open.")))])
    async with serve(team) as env:
        invocation = await env.client.start("team", "hello")
        assert texts_of(await agent_events(invocation)) == ["Closed today.", "Open."]
    assert (model.requests, order) == ([], [])


async def test_before_agent_of_a_composite_agent_skips_its_children(serve: Serve) -> None:
    """An answer of `before_agent` is the whole run of the composite agent."""
    model = ScriptedModel()
    team = SequentialAgent(
        name="team",
        sub_agents=[Agent(name="worker", model=model)],
        before_agent_callback=[lambda callback_context: None, lambda callback_context: content("No work today.")],
    )
    async with serve(team) as env:
        invocation = await env.client.start("team", "hello")
        assert texts_of(await agent_events(invocation)) == ["No work today."]
    assert model.requests == []


async def test_state_written_around_an_agent_is_a_separate_event(serve: Serve) -> None:
    """The instruction sees state from `before_agent`; content from `after_agent` is additional. Source: 6.3."""

    def before(callback_context: CallbackContext) -> None:
        callback_context.state["city"] = "Bern"

    def after(callback_context: CallbackContext) -> types.Content:
        callback_context.state["seen"] = callback_context.state["city"]
        return content("Good bye.")

    model = ScriptedModel(says("Hello."))
    guide = Agent(
        name="guide",
        model=model,
        instruction="You know {city}.",
        before_agent_callback=before,
        after_agent_callback=after,
    )
    async with serve(guide) as env:
        invocation = await env.client.start("guide", "hello")
        events = await agent_events(invocation)
        result = await invocation.result()
    assert [(e.actions.state_delta, texts_of([e])) for e in events] == [
        ({"city": "Bern"}, []),
        ({}, ["Hello."]),
        ({"seen": "Bern"}, ["Good bye."]),
    ]
    assert (result.text, result.state_delta) == ("Good bye.", {"city": "Bern", "seen": "Bern"})
    assert (model.requests[0].system_instruction or "").startswith("You know Bern.\n\n")


async def test_before_model_may_change_the_request(serve: Serve) -> None:
    """The callback gets genai's types, and the model plain JSON; unchanged contents keep their form."""

    def before(callback_context: CallbackContext, llm_request: Any) -> None:
        llm_request.contents.append(types.Content(role="user", parts=[types.Part(text="Be kind.")]))
        llm_request.append_instructions(["Answer in German."])
        llm_request.config.temperature = 0.5
        llm_request.model = "other-model"
        callback_context.state["asked"] = True

    model = ScriptedModel(says("Hallo."))
    agent = Agent(name="kind", model=model, tools=[pay], before_model_callback=before)
    async with serve(agent) as env:
        invocation = await env.client.start("kind", "hello")
        [event] = await agent_events(invocation)
    [request] = model.requests
    assert request.contents == [
        {"role": "user", "parts": [{"text": "hello"}]},
        {"role": "user", "parts": [{"text": "Be kind."}]},
    ]
    assert request.system_instruction == 'You are an agent. Your internal name is "kind".\n\nAnswer in German.'
    assert (request.model, request.config) == ("other-model", {"temperature": 0.5})
    assert [tool["name"] for tool in request.tools] == ["pay"]
    assert event.actions.state_delta == {"asked": True}


async def test_before_model_may_answer_with_calls(serve: Serve) -> None:
    """The model is not called, and the calls of the answer run."""
    answers = [
        LlmResponse(
            content=types.Content(
                role="model",
                parts=[types.Part(function_call=types.FunctionCall(name="pay", args={"amount": 3}, id="x"))],
            )
        ),
        LlmResponse(content=content("Paid.")),
    ]
    model = ScriptedModel()
    agent = Agent(
        name="payer",
        model=model,
        tools=[pay],
        before_model_callback=lambda callback_context, llm_request: answers.pop(0),
    )
    async with serve(agent) as env:
        invocation = await env.client.start("payer", "pay")
        called, returned, text = await agent_events(invocation)
    assert called.function_calls() == [{"name": "pay", "args": {"amount": 3}, "id": "fc-1"}]
    assert returned.function_responses() == [{"id": "fc-1", "name": "pay", "response": {"paid": 3}}]
    assert (texts_of([text]), model.requests) == (["Paid."], [])


async def test_after_model_may_replace_or_change_the_response(serve: Serve) -> None:
    """A replacement keeps the token count; a change in place counts unless the callback returns a response."""

    def change(callback_context: CallbackContext, llm_response: Any) -> None:
        llm_response.content.parts[0].text = llm_response.content.parts[0].text.upper()

    def replace(callback_context: CallbackContext, llm_response: Any) -> LlmResponse:
        return LlmResponse(content=content(llm_response.content.parts[0].text + "!"))

    async with serve(
        Agent(name="loud", model=ScriptedModel(says("hello")), after_model_callback=change),
        Agent(name="louder", model=ScriptedModel(says("hello")), after_model_callback=[change, replace]),
    ) as env:
        assert (await env.client.run("loud", "x")).text == "HELLO"
        assert (await env.client.run("louder", "x")).text == "HELLO!"


async def test_untouched_contents_reach_the_model_unchanged(serve: Serve) -> None:
    """Thought signatures and parts of unknown kinds keep their original form."""
    part = {"functionCall": {"name": "pay", "args": {"amount": 1}}, "thoughtSignature": "a+/b", "novel": {"x": 1}}
    model = ScriptedModel(LlmResponse(content={"role": "model", "parts": [part]}), says("Paid."))
    agent = Agent(
        name="payer",
        model=model,
        tools=[pay],
        before_model_callback=lambda callback_context, llm_request: None,
        after_model_callback=lambda callback_context, llm_response: None,
    )
    await run(serve(agent), "payer", "pay")
    assert model.requests[1].contents[1] == {"role": "model", "parts": [part]}


async def test_on_model_error_may_replace_a_failed_model(serve: Serve) -> None:
    """An answer replaces the failed model; without one the invocation fails as usual."""
    errors: list[str] = []

    def rescue(callback_context: CallbackContext, llm_request: Any, error: Exception) -> LlmResponse:
        errors.append(type(error).__name__)
        return LlmResponse(content=content("I am tired."))

    async with serve(
        Agent(name="rescued", model=ScriptedModel(ModelRefused("no")), on_model_error_callback=rescue),
        Agent(
            name="lost",
            model=ScriptedModel(ModelRefused("no")),
            on_model_error_callback=lambda callback_context, llm_request, error: None,
        ),
    ) as env:
        assert (await env.client.run("rescued", "x")).text == "I am tired."
        assert await failure(await env.client.start("lost", "x")) == ("ModelFailed", "no")
    assert errors == ["ModelRefused"]


async def test_a_callback_that_raises_fails_the_invocation_without_its_text(serve: Serve) -> None:
    """The failure has the location but not the text, because histories keep it; plugins are named as in ADK."""

    def broken(callback_context: CallbackContext, llm_request: Any) -> None:
        raise KeyError("secret")

    class Broken(BasePlugin):
        async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
            raise KeyError("secret")

    alone = Agent(name="alone", model=ScriptedModel(), before_model_callback=broken)
    async with serve(
        alone, App(name="app", root_agent=Agent(name="apped", model=ScriptedModel()), plugins=[Broken("bad")])
    ) as env:
        kind, message = await failure(await env.client.start("alone", "x"))
        assert (kind, message.split(" at ")[0]) == ("KeyError", "`before_model_callback` raised KeyError")
        kind, message = await failure(await env.client.start("apped", "x"))
    assert kind == "RuntimeError"
    assert message.startswith("Error in plugin 'bad' during 'before_agent_callback' callback: KeyError at ")


async def test_a_callback_with_a_wrong_result_fails_with_the_expected_type(serve: Serve) -> None:
    """The failure names the expected type instead of a location in Waystation's code."""

    def number(callback_context: CallbackContext) -> int:
        return 42

    def dictionary(callback_context: CallbackContext, llm_request: Any) -> dict[str, int]:
        return {"answer": 42}

    around = Agent(name="around", model=ScriptedModel(), before_agent_callback=number)
    before = Agent(name="before", model=ScriptedModel(), before_model_callback=dictionary)
    async with serve(around, before) as env:
        assert await failure(await env.client.start("around", "x")) == (
            "TypeError",
            "`before_agent_callback` returned a value of type int; return a genai Content or None.",
        )
        assert await failure(await env.client.start("before", "x")) == (
            "TypeError",
            "`before_model_callback` returned a value of type dict; return an LlmResponse or None.",
        )


async def test_invalid_state_of_a_callback_is_named(serve: Serve, logs: list[MutableMapping[str, Any]]) -> None:
    """The failure has the key of the invalid state, but not its value. An invalid part of a value is replaced and
    logged.
    """

    def store(callback_context: CallbackContext) -> None:
        callback_context.state["ratio"] = math.nan
        if callback_context.agent_name == "a":
            callback_context.state["handle"] = object()

    agents = [Agent(name=name, model=ScriptedModel(says("Hi.")), before_agent_callback=store) for name in "ab"]
    async with serve(*agents) as env:
        kind, message = await failure(await env.client.start("a", "x"))
        result = await env.client.run("b", "x")
    assert kind == "StateRefused"
    assert "State 'handle' cannot be stored: it is a value of type builtins.object" in message
    assert (result.text, result.state_delta) == ("Hi.", {"ratio": "NaN"})
    assert [entry["keys"] for entry in logs if entry["event"] == "state.values_replaced"] == [["ratio"]]


async def test_the_log_has_the_reason_of_a_failed_model_call(
    serve: Serve, logs: list[MutableMapping[str, Any]]
) -> None:
    """The log event has the recorded failure and the ID of the invocation."""

    def instruct(context: Any) -> str:
        return str(context.state["nobody"])

    async with serve(Agent(name="guide", model=ScriptedModel(), instruction=instruct)) as env:
        invocation = await env.client.start("guide", "x")
        kind, message = await failure(invocation)
    (failed,) = (entry for entry in logs if entry["event"] == "model_call.failed")
    assert (failed["invocation_id"], failed["error_type"], failed["problem"]) == (invocation.id, kind, message)
    assert message.endswith(f" raised KeyError at {__file__}:{instruct.__code__.co_firstlineno + 1}.")
