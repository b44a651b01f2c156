"""Recorded activities run again with the workers' code, without a worker."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.corpus.scenarios import SCENARIOS
from tests.paths import HISTORIES
from waystation.agents import Agent
from waystation.apps.registry import Registry
from waystation.core.payload import JsonObject
from waystation.replay import Recording
from waystation.replay.activity_replay import (
    ModelNotCalled,
    NoSuchActivity,
    Workshop,
    find_calls,
    find_model_call,
    find_model_call_number,
    find_tool_call,
)
from waystation.testing import ScriptedModel, says
from waystation.tools.tool_context import ToolContext


async def read_history(name: str) -> Recording:
    """Read a history of the corpus."""
    return await Recording.read(HISTORIES / f"{name}.json")


def workshop(scenario: str) -> Workshop:
    """Return the workshop for replaying activities of a scenario's agent."""
    return Workshop(Registry.of(SCENARIOS[scenario].agent()))


async def test_a_tool_call_runs_again_as_it_was_recorded() -> None:
    """A replayed call has the same arguments, result, state delta and context."""
    context: JsonObject = {}

    def add(a: int, b: int, tool_context: ToolContext) -> dict[str, int]:
        context.update(
            state=tool_context.state.to_dict(), key=tool_context.idempotency_key, id=tool_context.function_call_id
        )
        tool_context.state["sum"] = a + b
        return {"sum": a + b}

    step = find_tool_call(await read_history("one-tool"), "fc-1")
    now = await Workshop(Registry.of(Agent(name="clerk", tools=[add]))).call_tool(step)
    assert step.result is not None
    assert (now.response, now.actions and now.actions.state_delta) == ({"sum": 3}, {"sum": 3})
    assert context == {"state": {"seed": 1}, "key": "one-tool/fc-1", "id": "fc-1"}


@pytest.mark.parametrize(("call", "places"), [("fc-1", {}), ("fc-4", {}), ("fc-5", {"door": "seen", "window": "seen"})])
async def test_a_quick_call_runs_again_with_the_state_that_it_saw(call: str, places: JsonObject) -> None:
    """The input of a local activity, which no history contains, is created again from the log."""
    state: JsonObject = {}

    def glance(place: str, tool_context: ToolContext) -> str:
        state.update(tool_context.state.to_dict())
        tool_context.state[place] = "seen"
        return f"seen: {place}"

    step = find_tool_call(await read_history("quick-tools"), call)
    now = await Workshop(Registry.of(Agent(name="clerk", tools=[glance]))).call_tool(step)
    assert step.result is not None
    assert (now.response, now.actions) == (step.result.response, step.result.actions)
    assert step.scheduled is not None, "the call is one that ran"
    assert {key: value for key, value in state.items() if value == "seen"} == places


async def test_an_edited_call_runs_again_with_the_edited_arguments() -> None:
    """The recorded approval covers the edited arguments, because their digest matches."""
    step = find_tool_call(await read_history("confirmation-edited"), "fc-1")
    assert (await workshop("confirmation-edited").call_tool(step)).response == {"paid": 5}
    assert (await workshop("confirmation-edited").call_tool(step, args={"amount": 7})).response == {"paid": 7}


async def test_a_tool_that_raises_is_not_repeated() -> None:
    """A failure that Temporal would retry is reported at once."""
    step = find_tool_call(await read_history("tool-raises"), "fc-1")
    now = await workshop("tool-raises").call_tool(step)
    assert (now.response, now.error_type) == (step.result and step.result.response, "ValueError")


async def test_a_model_call_runs_again_with_the_recorded_prompt() -> None:
    """The recorded conversation is sent to the current model."""
    model = ScriptedModel(says("three, I think"))
    step = find_model_call(await read_history("one-tool"), 2)
    now, request = await Workshop(Registry.of(Agent(name="clerk", model=model))).call_model(step)
    assert now.content == {"role": "model", "parts": [{"text": "three, I think"}]}
    assert request is not None
    assert [content["role"] for content in request.sent.contents] == ["user", "model", "user"]
    assert model.requests == [request.sent]


async def test_a_prompt_is_built_without_calling_the_model() -> None:
    """The definition digest changes only with the agent's declaration."""
    step = find_model_call(await read_history("one-tool"), 2)
    assert step.result is not None
    same = await workshop("one-tool").request(step)
    other = await Workshop(Registry.of(Agent(name="clerk", instruction="Be brief."))).request(step)
    assert same.sent.contents == other.sent.contents
    assert other.sent.system_instruction is not None
    assert "Be brief." in other.sent.system_instruction
    assert other.definition != same.definition


async def test_a_callback_that_replies_for_the_model_leaves_no_prompt() -> None:
    """No request is sent if a callback replies in place of the model."""

    def reply(callback_context: Any, llm_request: Any) -> Any:
        return says("I speak.")

    step = find_model_call(await read_history("one-tool"), 2)
    agent = Agent(name="clerk", before_model_callback=reply)
    with pytest.raises(ModelNotCalled, match="'clerk'"):
        await Workshop(Registry.of(agent)).request(step)


async def test_callbacks_change_the_request_before_it_is_shown() -> None:
    """The request has the change of a callback, but the definition digest does not."""

    def changes(callback_context: Any, llm_request: Any) -> None:
        llm_request.append_instructions(["Be kind."])

    step = find_model_call(await read_history("one-tool"), 1)
    request = await Workshop(Registry.of(Agent(name="clerk", before_model_callback=changes))).request(step)
    unchanged = await Workshop(Registry.of(Agent(name="clerk"))).request(step)
    assert "Be kind." in (request.sent.system_instruction or "")
    assert request.definition == unchanged.definition


@pytest.mark.parametrize(
    ("event", "number", "calls"), [(1, None, []), (2, 1, ["fc-1"]), (3, None, ["fc-1"]), (4, 2, [])]
)
async def test_an_event_names_its_step(event: int, number: int | None, calls: list[str]) -> None:
    """The event of a call and the event of its response both name the call."""
    recording = await read_history("one-tool")
    assert (find_model_call_number(recording, event), find_calls(recording, event)) == (number, calls)


@pytest.mark.parametrize("event", [2, 3, 4, 5])
async def test_an_approval_belongs_to_its_call(event: int) -> None:
    """The events that request and answer an approval name the call, too."""
    assert find_calls(await read_history("confirmation-edited"), event) == ["fc-1"]


@pytest.mark.parametrize(
    "wrong",
    [lambda found: find_tool_call(found, "fc-9"), lambda found: find_model_call(found, 9)],
    ids=["call", "model"],
)
async def test_a_missing_step_is_named(wrong: Callable[[Recording], object]) -> None:
    """The error names the call that does not exist."""
    recording = await read_history("one-tool")
    with pytest.raises(NoSuchActivity, match="9"):
        wrong(recording)
