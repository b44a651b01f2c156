"""Fields of an LlmAgent shape its requests and replies. Source: adk-semantics 9.1 and 9.3."""

import json
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel

from tests.agents import model_of, speaks
from tests.server.conftest import Serve
from tests.steps import run
from waystation.agents import Agent, SequentialAgent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.artifacts.in_memory_artifact_service import InMemoryArtifactService
from waystation.code_executors import BuiltInCodeExecutor
from waystation.core.contract import Event, text_of
from waystation.models import LlmResponse
from waystation.testing import ScriptedModel, calls, responses, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.services import Services
from waystation.tools.tool_context import CallbackContext, ToolContext


class Weather(BaseModel):
    """The weather."""

    city: str
    degrees: int
    wind: str | None = None


def look(city: str) -> dict[str, int]:
    """Look out of the window."""
    return {"degrees": 21}


def deltas(events: list[Event]) -> list[dict[str, Any]]:
    """Return the state deltas of the agents' events."""
    return [event.actions.state_delta for event in events if event.author != "user"]


async def test_the_whole_reply_is_stored_under_the_output_key(serve: Serve) -> None:
    """The stored text includes text next to a call; each event stores the text so far, for the next agent to read."""
    first = speaks(
        "first",
        calls(("look", {"city": "Bern"}), text="I am looking. "),
        says("It is warm."),
        tools=[look],
        output_key="report",
    )
    second = speaks("second", says("Noted."), instruction="Summarize: {report}")
    async with serve(SequentialAgent(name="team", sub_agents=[first, second])) as env:
        invocation = await env.client.start("team", "weather?")
        result = await invocation.result()
        events = (await invocation.log()).state.events
    assert deltas(events) == [
        {"report": "I am looking. "},
        {},
        {"report": "I am looking. It is warm."},
        {},
    ]
    assert result.state_delta == {"report": "I am looking. It is warm."}
    assert (model_of(second).requests[0].system_instruction or "").startswith(
        "Summarize: I am looking. It is warm.\n\nYou are"
    )


async def test_a_late_answer_restarts_the_text_under_the_output_key(serve: Serve) -> None:
    """As in ADK's next run, text from before the answer is left out."""

    def ask(city: str) -> dict[str, str]:
        return {"status": "pending"}

    agent = speaks(
        "first",
        calls(("ask", {"city": "Bern"}), text="One moment. "),
        says("I asked."),
        says("It is warm."),
        tools=[LongRunningFunctionTool(ask)],
        output_key="report",
    )
    async with serve(agent) as env:
        invocation = await env.client.start("first", "weather?")
        async for event in invocation.events():
            if text_of(event.content) == "I asked.":
                await invocation.approve("fc-1")
        assert (await invocation.result()).state_delta == {"report": "It is warm."}


async def test_an_output_schema_is_requested_and_parsed(serve: Serve) -> None:
    """Without tools the model receives the schema. None is left out, and a code fence is accepted."""
    text = '```json\n{"city": "Bern", "degrees": 21, "wind": null}\n```'
    agent = speaks("weather", says(text), output_schema=Weather, output_key="now")
    result = await run(serve(agent), "weather", "Bern?")
    assert (result.output, result.state_delta) == (
        {"city": "Bern", "degrees": 21},
        {"now": {"city": "Bern", "degrees": 21}},
    )
    [request] = model_of(agent).requests
    assert request.config["responseMimeType"] == "application/json"
    assert request.config["responseJsonSchema"]["required"] == ["city", "degrees"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("It is warm.", "value: Invalid JSON"), ('{"city": "Bern"}', "degrees: Field required")],
    ids=["not-json", "does-not-fit"],
)
async def test_a_reply_that_does_not_match_its_schema_is_reported_twice(serve: Serve, text: str, problem: str) -> None:
    """After the third one, the invocation stops with the problem as reason, keeps the text, and stores nothing."""
    result = await run(
        serve(speaks("weather", *[says(text)] * 3, output_schema=Weather, output_key="now")), "weather", "Bern?"
    )
    assert (result.status, result.text, result.output, result.state_delta) == ("stopped", text, None, {})
    assert (result.reason or "").startswith(f"The answer of 'weather' does not fit its output_schema: {problem}")


async def test_with_tools_the_structured_answer_is_a_call(serve: Serve) -> None:
    """The instruction asks for the call. An invalid answer is reported to the model, and a valid one ends the turn."""
    agent = speaks(
        "weather",
        calls(("look", {"city": "Bern"})),
        calls(("set_model_response", {"city": "Bern"})),
        calls(("set_model_response", {"city": "Bern", "degrees": 21})),
        tools=[look],
        output_schema=Weather,
        output_key="now",
    )
    async with serve(agent) as env:
        invocation = await env.client.start("weather", "Bern?")
        result = await invocation.result()
        events = (await invocation.log()).state.events
    assert (json.loads(result.text), result.output) == ({"city": "Bern", "degrees": 21},) * 2
    assert result.state_delta == {"now": {"city": "Bern", "degrees": 21}}
    assert events[-2].function_responses()[0]["response"] == {"city": "Bern", "degrees": 21}
    requests = model_of(agent).requests
    assert [tool["name"] for tool in requests[0].tools] == ["set_model_response", "look"]
    assert "responseJsonSchema" not in requests[0].config
    assert "you must provide your final response using the set_model_response tool" in str(
        requests[0].system_instruction
    )
    [_, (_, refused)] = responses(requests[2])
    assert refused["error"].startswith("Validation Error found:\ndegrees: Field required\nRecall the set_model_resp")


async def test_a_structured_list_is_wrapped_in_an_object(serve: Serve) -> None:
    """A function's result would be wrapped in the same way."""
    answer = calls(("set_model_response", {"items": [{"city": "Bern", "degrees": 21}]}))
    result = await run(
        serve(speaks("weather", answer, tools=[look], output_schema=list[Weather], output_key="all")), "weather", "all?"
    )
    assert result.output == {"result": [{"city": "Bern", "degrees": 21}]}
    assert result.state_delta == {"all": [{"city": "Bern", "degrees": 21}]}


async def test_a_called_agent_follows_its_schemas(serve: Serve) -> None:
    """Invalid arguments are reported to the model, and defaults are filled in. Source: adk-semantics 4.1 to 4.5."""

    class Place(BaseModel):
        city: str
        country: str = "CH"

    child = speaks("weather", says('{"city": "Bern", "degrees": 21}'), input_schema=Place, output_schema=Weather)
    boss = speaks(
        "boss", calls(("weather", {})), calls(("weather", {"city": "Bern"})), says("Warm."), tools=[AgentTool(child)]
    )
    await run(serve(boss), "boss", "go")
    (_, refused), (_, answer) = responses(model_of(boss).requests[-1])
    assert refused == {
        "error": "Invoking `weather()` failed due to argument validation errors:\n"
        "Parameter 'city': validation error: Field required\n"
        "You could retry calling this tool with corrected argument types."
    }
    assert answer == {"city": "Bern", "degrees": 21}
    assert model_of(child).requests[0].contents == [
        {"role": "user", "parts": [{"text": '{"city":"Bern","country":"CH"}'}]}
    ]
    [declared] = model_of(boss).requests[0].tools
    assert declared["parametersJsonSchema"]["required"] == ["city"]


async def test_instructions_have_adks_order(serve: Serve) -> None:
    """The order is global, own, identity, transfer; providers may be coroutines, and their texts are not templates."""

    async def provide(context: ReadonlyContext) -> str:
        return f"For {context.agent_name}: {{name}} of {context.user_id}."

    child = speaks("child", description="Helps.")
    root = speaks(
        "root",
        says("ok"),
        description="Leads.",
        instruction=provide,
        global_instruction="Be {mood}.",
        sub_agents=[child],
    )
    await run(serve(root), "root", "hello", state={"mood": "kind"}, user_id="ann")
    assert model_of(root).requests[0].system_instruction == (
        "Be kind.\n\nFor root: {name} of ann.\n\n"
        'You are an agent. Your internal name is "root". The description about you is "Leads.".\n\n'
        "\nYou have a list of other agents to transfer to:\n\n\nAgent name: child\nAgent description: Helps.\n\n\n"
        "If you are the best to answer the question according to your description,\nyou can answer it.\n\n"
        "If another agent is better for answering the question according to its\ndescription, call "
        "`transfer_to_agent` function to transfer the question to that\nagent. When transferring, do not generate any "
        "text other than the function\ncall.\n\n"
        "**NOTE**: the only available agents for `transfer_to_agent` function are\n`child`.\n"
    )


async def test_a_static_instruction_moves_the_other_into_the_contents(serve: Serve) -> None:
    """The constant text is the system instruction; the changing one precedes the user's last message."""
    agent = speaks(
        "guide",
        calls(("look", {"city": "Bern"})),
        says("ok"),
        tools=[look],
        static_instruction=types.Content(parts=[types.Part(text="Constant."), types.Part(text="Also.")]),
        instruction="Now in {city}.",
    )
    await run(serve(agent), "guide", "hello", state={"city": "Bern"})
    first, second = model_of(agent).requests
    assert first.system_instruction == 'Constant.\n\nAlso.\n\nYou are an agent. Your internal name is "guide".'
    assert [content["parts"][0].get("text", "")[-80:] for content in first.contents] == [
        first.contents[0]["parts"][0]["text"][-80:],
        "hello",
    ]
    begin, end = "<<<BEGIN_SYSTEM_INSTRUCTION>>>", "<<<END_SYSTEM_INSTRUCTION>>>"
    assert first.contents[0]["parts"][0]["text"].endswith(f"{begin}\nNow in Bern.\n{end}")
    assert second.contents[-1] == first.contents[0]


async def test_an_agent_transfers_to_another_one(serve: Serve) -> None:
    """The transfer needs no activity, because the call is answered at once. The other agent sees it quoted."""
    support = speaks("support", says("On my way."), description="Urgent things.")
    desk = speaks("desk", calls(("transfer_to_agent", {"agent_name": "support"})), sub_agents=[support])
    async with serve(desk) as env:
        invocation = await env.client.start("desk", "fire!")
        result = await invocation.result()
        events = (await invocation.log()).state.events
    assert (result.text, result.next_agent) == ("On my way.", "support")
    assert events[2].function_responses()[0]["response"] == {"result": None}
    assert events[2].actions.transfer_to_agent == "support"
    [declared] = model_of(desk).requests[0].tools
    assert declared["parametersJsonSchema"]["properties"]["agent_name"]["enum"] == ["support"]
    [declared] = model_of(support).requests[0].tools
    assert declared["parametersJsonSchema"]["properties"]["agent_name"]["enum"] == ["desk"]


@pytest.mark.parametrize("around", [False, True], ids=["answered-at-once", "with-callbacks"])
async def test_a_forbidden_transfer_is_reported_to_the_model(serve: Serve, around: bool) -> None:
    """Transfers to unknown and unreachable agents are reported, and the invocation continues."""
    below = speaks("below")
    child = speaks("child", sub_agents=[below])
    fields: dict[str, Any] = {"before_tool_callback": lambda tool, args, tool_context: None} if around else {}
    root = speaks(
        "root",
        calls(("transfer_to_agent", {"agent_name": "nobody"}), ("transfer_to_agent", {"agent_name": "below"})),
        calls(("transfer_to_agent", {})),
        says("I stay."),
        sub_agents=[child],
        **fields,
    )
    assert (await run(serve(root), "root", "go")).text == "I stay."
    errors = [response["error"] for _, response in responses(model_of(root).requests[-1])]
    assert errors[:2] == [
        "Transfer target agent 'nobody' not found.",
        "Agent root is not allowed to transfer to agent below.",
    ]
    assert errors[2].startswith("Invoking `transfer_to_agent()` failed as the following mandatory input parameters")


async def test_any_tool_may_transfer(serve: Serve) -> None:
    """A tool that transfers has its own result as response; an unknown target is an error for the model."""

    def escalate(to: str, tool_context: ToolContext) -> str:
        """Escalate."""
        tool_context.actions.transfer_to_agent = to
        return "handed over"

    support = speaks("support", says("On my way."))
    desk = speaks(
        "desk",
        calls(("escalate", {"to": "nobody"})),
        calls(("escalate", {"to": "support"})),
        tools=[escalate],
        sub_agents=[support],
    )
    async with serve(desk) as env:
        invocation = await env.client.start("desk", "fire!")
        assert (await invocation.result()).text == "On my way."
        events = (await invocation.log()).state.events
    assert responses(model_of(desk).requests[1]) == [
        (
            "escalate",
            {
                "error": "Transfer target agent 'nobody' not found.",
                "error_type": "ValueError",
                "result": {"result": "handed over"},
            },
        )
    ]
    assert events[4].function_responses()[0]["response"] == {"result": "handed over"}
    assert events[2].actions.transfer_to_agent is None


async def test_sub_agents_may_be_set_later(serve: Serve) -> None:
    """ADK's guide does this; such a sub-agent cannot transfer back, as in ADK."""
    support = speaks("support", says("On my way."))
    desk = speaks("desk", calls(("transfer_to_agent", {"agent_name": "support"})))
    desk.sub_agents = [support]
    assert (await run(serve(desk), "desk", "fire!")).text == "On my way."
    assert model_of(support).requests[0].tools == []


async def test_the_models_own_code_execution_is_in_the_request(serve: Serve) -> None:
    """Code execution is a native tool of the provider, next to function declarations."""
    agent = Agent(name="coder", model="gemini-3.5-flash", tools=[look], code_executor=BuiltInCodeExecutor())
    model = ScriptedModel(says("42"))
    await run(serve(agent, model=model), "coder", "compute")
    assert model.requests[0].genai_tools()[1] == {"codeExecution": {}}


@pytest.mark.parametrize("parts", [[], [{"text": "  "}], [{"text": "hm", "thought": True}]])
async def test_an_empty_reply_of_a_model_is_an_error(serve: Serve, parts: list[dict[str, Any]]) -> None:
    """An empty reply with an error code becomes an error event. Source: adk-semantics 9.4."""
    empty = LlmResponse(content={"role": "model", "parts": parts}, finish_reason="STOP")
    async with serve(speaks("mute", *[empty] * 3)) as env:
        invocation = await env.client.start("mute", "x")
        result = await invocation.result()
        assert (await invocation.log()).state.events[-1].error_code == "MODEL_RETURNED_NO_CONTENT"
    assert result.status == "stopped"


async def test_artifacts_are_inserted_into_instructions(serve: Serve) -> None:
    """The text of an artifact is inserted; an optional missing one is empty. Callbacks may save one just before."""

    async def save(callback_context: CallbackContext) -> None:
        part = types.Part.from_bytes(data=b"Closed on Sundays.", mime_type="text/plain")
        await callback_context.save_artifact("hours.txt", part)

    agent = speaks(
        "guide",
        says("ok"),
        instruction="{artifact.hours.txt}{artifact.nothing?}",
        before_agent_callback=save,
    )
    async with serve(agent, services=Services(artifacts=InMemoryArtifactService())) as env:
        invocation = await env.client.start("guide", "hello")
        await invocation.result()
        events = (await invocation.log()).state.events
    assert (model_of(agent).requests[0].system_instruction or "").startswith("Closed on Sundays.\n\n")
    assert events[1].actions.artifact_delta == {"hours.txt": 0}
