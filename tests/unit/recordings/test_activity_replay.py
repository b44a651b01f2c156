"""Recorded activities run again with the workers' code, without a worker."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.corpus.scenarios import SCENARIOS
from tests.paths import HISTORIES
from waystation.agents import Agent
from waystation.agents.registry import Registry
from waystation.core import JsonObject
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


async def recorded(name: str) -> Recording:
    """Read a history of the corpus."""
    return await Recording.read(HISTORIES / f"{name}.json")


def workshop(scenario: str) -> Workshop:
    """Return a workshop with the agent of a scenario."""
    return Workshop(Registry.of(SCENARIOS[scenario].agent()))


async def test_a_tool_call_runs_again_as_it_was_recorded() -> None:
    """A replayed call has the same arguments, result, state delta and context."""
    seen: JsonObject = {}

    def add(a: int, b: int, tool_context: ToolContext) -> dict[str, int]:
        seen.update(
            state=tool_context.state.to_dict(), key=tool_context.idempotency_key, id=tool_context.function_call_id
        )
        tool_context.state["sum"] = a + b
        return {"sum": a + b}

    step = find_tool_call(await recorded("one-tool"), "fc-1")
    now = await Workshop(Registry.of(Agent(name="clerk", tools=[add]))).call_tool(step)
    assert step.result is not None
    assert (now.response, now.actions and now.actions.state_delta) == ({"sum": 3}, {"sum": 3})
    assert seen == {"state": {"seed": 1}, "key": "one-tool/fc-1", "id": "fc-1"}


@pytest.mark.parametrize(("call", "places"), [("fc-1", {}), ("fc-4", {}), ("fc-5", {"door": "seen", "window": "seen"})])
async def test_a_quick_call_runs_again_with_the_state_that_it_saw(call: str, places: JsonObject) -> None:
    """The input of a local activity is not recorded, so it is created again from the log."""
    seen: JsonObject = {}

    def glance(place: str, tool_context: ToolContext) -> str:
        seen.update(tool_context.state.to_dict())
        tool_context.state[place] = "seen"
        return f"seen: {place}"

    step = find_tool_call(await recorded("quick-tools"), call)
    now = await Workshop(Registry.of(Agent(name="clerk", tools=[glance]))).call_tool(step)
    assert step.result is not None
    assert (now.response, now.actions) == (step.result.response, step.result.actions)
    assert step.scheduled is not None, "the call is one that ran"
    assert {key: value for key, value in seen.items() if value == "seen"} == places


async def test_an_edited_call_runs_again_with_what_the_person_made_of_it() -> None:
    """The recorded approval covers the edited arguments, because their digest matches."""
    step = find_tool_call(await recorded("confirmation-edited"), "fc-1")
    assert (await workshop("confirmation-edited").call_tool(step)).response == {"paid": 5}
    assert (await workshop("confirmation-edited").call_tool(step, args={"amount": 7})).response == {"paid": 7}


async def test_a_tool_that_raises_is_not_repeated() -> None:
    """A failure that Temporal would retry is reported at once."""
    step = find_tool_call(await recorded("tool-raises"), "fc-1")
    now = await workshop("tool-raises").call_tool(step)
    assert (now.response, now.error_type) == (step.result and step.result.response, "ValueError")


async def test_a_model_call_runs_again_with_the_prompt_that_was_recorded() -> None:
    """The present model gets the recorded conversation."""
    model = ScriptedModel(says("three, I think"))
    step = find_model_call(await recorded("one-tool"), 2)
    now, asked = await Workshop(Registry.of(Agent(name="clerk", model=model))).call_model(step)
    assert now.content == {"role": "model", "parts": [{"text": "three, I think"}]}
    assert asked is not None
    assert [content["role"] for content in asked.sent.contents] == ["user", "model", "user"]
    assert model.requests == [asked.sent]


async def test_a_prompt_is_put_together_without_asking_the_model() -> None:
    """The definition digest changes only with the agent's declaration."""
    step = find_model_call(await recorded("one-tool"), 2)
    assert step.result is not None
    same = await workshop("one-tool").request(step)
    other = await Workshop(Registry.of(Agent(name="clerk", instruction="Be brief."))).request(step)
    assert same.sent.contents == other.sent.contents
    assert other.sent.system_instruction is not None
    assert "Be brief." in other.sent.system_instruction
    assert other.definition != same.definition


async def test_no_prompt_is_seen_where_a_callback_speaks_for_the_model() -> None:
    """There is no request when a callback answers in place of the model."""

    def speaks(callback_context: Any, llm_request: Any) -> Any:
        return says("I speak.")

    step = find_model_call(await recorded("one-tool"), 2)
    agent = Agent(name="clerk", before_model_callback=speaks)
    with pytest.raises(ModelNotCalled, match="'clerk'"):
        await Workshop(Registry.of(agent)).request(step)


async def test_callbacks_see_the_request_before_it_is_looked_at() -> None:
    """A change made by a callback is in the request, but not in the definition digest."""

    def changes(callback_context: Any, llm_request: Any) -> None:
        llm_request.append_instructions(["Be kind."])

    step = find_model_call(await recorded("one-tool"), 1)
    asked = await Workshop(Registry.of(Agent(name="clerk", before_model_callback=changes))).request(step)
    unchanged = await Workshop(Registry.of(Agent(name="clerk"))).request(step)
    assert "Be kind." in (asked.sent.system_instruction or "")
    assert asked.definition == unchanged.definition


@pytest.mark.parametrize(
    ("event", "number", "calls"), [(1, None, []), (2, 1, ["fc-1"]), (3, None, ["fc-1"]), (4, 2, [])]
)
async def test_an_event_names_its_step(event: int, number: int | None, calls: list[str]) -> None:
    """The event with a call and the event with its response both name the call."""
    recording = await recorded("one-tool")
    assert (find_model_call_number(recording, event), find_calls(recording, event)) == (number, calls)


@pytest.mark.parametrize("event", [2, 3, 4, 5])
async def test_an_approval_belongs_to_its_call(event: int) -> None:
    """The event that requests an approval and the event with the answer name the call, too."""
    assert find_calls(await recorded("confirmation-edited"), event) == ["fc-1"]


@pytest.mark.parametrize(
    "wrong",
    [lambda found: find_tool_call(found, "fc-9"), lambda found: find_model_call(found, 9)],
    ids=["call", "model"],
)
async def test_a_step_that_is_not_there_is_named(wrong: Callable[[Recording], object]) -> None:
    """The error names the call that does not exist."""
    recording = await recorded("one-tool")
    with pytest.raises(NoSuchActivity, match="9"):
        wrong(recording)
