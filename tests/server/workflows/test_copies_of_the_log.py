"""A context shows copies of the log: changing them affects nobody else."""

from typing import Any

from tests.server.conftest import Serve
from tests.steps import run
from waystation.agents import Agent
from waystation.core.payload import JsonObject, copy_json
from waystation.models.llm_request import LlmRequest
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.tool_context import CallbackContext, ToolContext


def read_context(context: ToolContext) -> JsonObject:
    """Return everything that a context shows of the log."""
    content: Any = context.user_content
    made: JsonObject = copy_json(
        {
            "state": context.session.state,
            "event": context.session.events[0].model_dump(mode="json", exclude_none=True),
            "metadata": context.custom_metadata,
            "run_config": context.run_config.custom_metadata,
            "said": [part.model_dump(mode="json", exclude_none=True) for part in content.parts],
        }
    )
    return made


def spoil(context: ToolContext) -> JsonObject:
    """Return what a context shows, and then change all of it."""
    before = read_context(context)
    context.session.state["new"] = 1
    context.session.state["cart"].append("pear")
    event: Any = context.session.events[0]
    event.content.parts[0].text = "stop"
    event.content.parts.append(event.content.parts[0])
    event.actions.state_delta["cart"] = ["pear"]
    context.custom_metadata["tags"].append("spoilt")
    context.run_config.custom_metadata["tags"].append("spoilt")
    content: Any = context.user_content
    content.parts[0].text = "stop"
    return before


async def test_a_tools_changes_to_its_session_are_invisible(serve: Serve) -> None:
    """Neither a later call on the same worker, nor the model, nor the result shows them."""
    sessions: list[JsonObject] = []

    def look(tool_context: ToolContext) -> str:
        """Look and spoil."""
        sessions.append(spoil(tool_context))
        return "looked"

    model = ScriptedModel(calls(("look", {})), calls(("look", {})), says("done"))
    result = await run(
        serve(Agent(name="clerk", model=model, instruction="Cart: {cart}", tools=[look])),
        "clerk",
        "go",
        user_id="shopper",
        state={"cart": ["apple"]},
        metadata={"tags": ["a"]},
    )
    assert sessions[0] == sessions[1]
    assert (sessions[1]["state"], sessions[1]["metadata"]) == ({"cart": ["apple"]}, {"tags": ["a"]})
    assert result.state_delta == {}
    assert [request.contents[0]["parts"] for request in model.requests] == [[{"text": "go"}]] * 3
    assert "Cart: ['apple']" in (model.requests[2].system_instruction or "")


async def test_a_callbacks_changes_to_arguments_apply_to_its_request_only(serve: Serve) -> None:
    """The next model call shows the original arguments."""

    def forge(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        contents: Any = llm_request.contents
        for part in contents[1].parts if len(contents) == 3 else ():
            part.function_call.args["order"]["amount"] = 0

    def note(order: dict[str, int]) -> str:
        """Note an order."""
        return "noted"

    note_call = calls(("note", {"order": {"amount": 5}}))
    model = ScriptedModel(note_call, calls(("note", {"order": {"amount": 6}})), says("done"))
    async with serve(Agent(name="clerk", model=model, tools=[note], before_model_callback=forge)) as env:
        await (await env.client.start("clerk", "go")).result()
    amounts = [request.contents[1]["parts"][0]["functionCall"]["args"]["order"] for request in model.requests[1:]]
    assert amounts == [{"amount": 0}, {"amount": 5}]
