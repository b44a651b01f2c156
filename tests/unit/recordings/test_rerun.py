"""Activities that run again are compared with their recorded results."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tests.corpus.scenarios import SCENARIOS, pay
from tests.paths import HISTORIES
from waystation.agents import Agent
from waystation.apps.registry import Registry
from waystation.core.errors import UnknownAgent
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest
from waystation.replay import Recording, Workshop, rerun_model, rerun_tool
from waystation.replay.activity_replay import InvalidPrompt, NoSuchActivity, NotApproved
from waystation.testing import FunctionModel, ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


async def read_history(name: str) -> Recording:
    """Read a history of the corpus."""
    return await Recording.read(HISTORIES / f"{name}.json")


def scenario(name: str) -> Registry:
    """Return the agent of a scenario."""
    return Registry.of(SCENARIOS[name].agent())


def clerk(*tools: Any, **fields: Any) -> Registry:
    """Return an agent that replaces the scenario's agent."""
    return Registry.of(Agent(name="clerk", tools=list(tools), **fields))


@pytest.mark.parametrize("event", [2, 3])
async def test_an_unchanged_tool_call_has_no_differences(event: int) -> None:
    """A call is named by its event or by the event with its response."""
    rerun = await rerun_tool(await read_history("one-tool"), event, agents=scenario("one-tool"))
    assert (rerun.same, rerun.differences) == (True, [])
    assert rerun.args == {"a": 1, "b": 2}


async def test_a_changed_tool_shows_its_differences() -> None:
    """Differences in the response, the state and the error are listed by place."""

    def add(a: int, b: int, tool_context: ToolContext) -> dict[str, Any]:
        tool_context.state["sum"] = float(a + b)
        return {"sum": a + b, "exact": True}

    rerun = await rerun_tool(await read_history("one-tool"), 3, agents=clerk(add))
    places = {each.place: each.to_json() for each in rerun.differences}
    assert places["response.exact"] == {"place": "response.exact", "now": True}
    assert places["state.sum"] == {"place": "state.sum", "recorded": 3, "now": 3.0}
    assert set(places) == {"response.exact", "state.sum", "state.temp:last"}


async def test_an_event_with_several_calls_needs_a_choice() -> None:
    """The error lists the calls of the event."""
    recording = await read_history("parallel-tools")
    with pytest.raises(NoSuchActivity, match="fc-1, fc-2, fc-3"):
        await rerun_tool(recording, 2, agents=scenario("parallel-tools"))
    chosen = await rerun_tool(recording, 2, agents=scenario("parallel-tools"), call="fc-3")
    assert (chosen.tool, chosen.args, chosen.same) == ("note", {"text": "y"}, True)


async def test_an_edited_call_runs_with_the_edited_arguments() -> None:
    """The rerun uses the approver's arguments instead of the model's."""
    rerun = await rerun_tool(await read_history("confirmation-edited"), 5, agents=scenario("confirmation-edited"))
    assert (rerun.args, rerun.same, rerun.idempotency_key) == ({"amount": 5}, True, "confirmation-edited/fc-1")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("confirmation-left-waiting", "still pending"),
        ("confirmation-rejected", "someone rejected it"),
        ("confirmation-expired", "no one answered in time"),
        ("cancelled-while-waiting", "no one answered"),
    ],
)
async def test_a_call_that_was_never_approved_needs_a_flag(name: str, reason: str) -> None:
    """The error names the missing approval; with `unapproved`, the call runs as if approved."""
    paid = []

    def pay_soon(amount: int) -> dict[str, int]:
        paid.append(amount)
        return {"paid": amount}

    agents = clerk(FunctionTool(pay_soon, require_confirmation=True), FunctionTool(pay, require_confirmation=True))
    with pytest.raises(NotApproved, match=reason):
        await rerun_tool(await read_history(name), 2, agents=agents)
    assert paid == []
    rerun = await rerun_tool(await read_history(name), 2, agents=agents, unapproved=True)
    assert rerun.now is not None
    assert set(rerun.now.response or ()) == {"paid"}
    assert any("No one has approved" in remark for remark in rerun.remarks)


async def test_an_unknown_agent_is_named() -> None:
    """An unknown agent is an error that names it."""
    with pytest.raises(UnknownAgent, match="'clerk'"):
        await rerun_tool(await read_history("one-tool"), 3, agents=Registry.of(Agent(name="other")))


async def test_a_cancelled_rerun_stops_the_tool() -> None:
    """Cancelling a rerun cancels the tool, which may clean up."""
    running, stopped = asyncio.Event(), asyncio.Event()

    async def add(a: int, b: int) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    task = asyncio.create_task(rerun_tool(await read_history("one-tool"), 3, agents=clerk(add)))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.is_set()


async def test_heartbeats_of_a_rerun_tool_are_reported() -> None:
    """Heartbeats of the tool reach the caller."""
    heartbeats = asyncio.Queue[tuple[object, ...]]()

    async def add(a: int, b: int, tool_context: ToolContext) -> str:
        tool_context.heartbeat("half way")
        return str(await heartbeats.get())

    async with Workshop(clerk(add), on_heartbeat=lambda *said: heartbeats.put_nowait(said)) as workshop:
        recording = await read_history("one-tool")
        rerun = await workshop.rerun_tool(recording, await workshop.planned(recording, 3))
    assert rerun.now is not None
    assert rerun.now.response == {"result": "('half way',)"}


async def test_a_model_call_runs_again_with_the_recorded_conversation() -> None:
    """The current reply is compared with the recorded one, and a change of the agent is reported."""
    model = ScriptedModel(says("three"))
    rerun = await rerun_model(await read_history("one-tool"), 4, agents=clerk(model=model, instruction="Be brief."))
    assert [each.to_json() for each in rerun.differences] == [{"place": "text", "recorded": "3", "now": "three"}]
    assert rerun.changed is True
    assert rerun.request is not None
    assert [content["role"] for content in rerun.request["contents"]] == ["user", "model", "user"]
    assert (await rerun_model(await read_history("one-tool"), 4, agents=scenario("one-tool"))).request is not None


async def test_other_calls_of_a_model_are_differences() -> None:
    """Arguments of calls are compared, but not their IDs."""
    agents = clerk(pay, model=ScriptedModel(calls(("add", {"a": 1, "b": 3}))))
    rerun = await rerun_model(await read_history("one-tool"), 2, agents=agents)
    assert [each.to_json() for each in rerun.differences] == [
        {"place": "calls[0].args.b", "recorded": 2, "now": 3},
    ]


def echo(request: LlmRequest) -> str:
    """Return the request as text."""
    return f"{request.model}: {request.system_instruction} ({len(request.contents)})"


@pytest.mark.parametrize(
    ("edits", "reply", "places"),
    [
        ({"instruction": "Rhyme."}, "FunctionModel: Rhyme. (3)", ["systemInstruction"]),
        ({"prompt": {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}}, "(1)", ["contents"]),
        ({"prompt": {"systemInstruction": "Rhyme."}, "instruction": "Shout."}, "Shout.", ["systemInstruction"]),
        ({"model": FunctionModel(lambda _: "another")}, "another", []),
    ],
    ids=["instruction", "contents", "both", "model"],
)
async def test_a_model_call_is_made_with_an_edited_prompt(edits: JsonObject, reply: str, places: list[str]) -> None:
    """Edited fields are named, and all others stay the same."""
    rerun = await rerun_model(await read_history("one-tool"), 4, agents=clerk(model=FunctionModel(echo)), **edits)
    assert rerun.now is not None
    assert reply in str(rerun.now.content)
    assert [each.place for each in rerun.edited] == places


async def test_the_model_named_demo_is_the_demo_model() -> None:
    """The name `demo` stands for the agent's demo model or, if it has none, for the built-in demo model."""
    rerun = await rerun_model(await read_history("one-tool"), 4, agents=clerk(model="gemini-3.5-flash"), model="demo")
    assert rerun.now is not None
    assert "[demo model]" in str(rerun.now.content)


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ({"content": []}, "`content`"),
        ({"contents": []}, "`contents`: List should have at least 1 item"),
        ({"contents": "hi"}, "`contents`"),
        ({"tools": ["x"]}, "`tools.0`: Input should be an object"),
    ],
)
async def test_an_invalid_prompt_is_refused(prompt: JsonObject, problem: str) -> None:
    """An invalid prompt is refused before the model is called, and the error names the field."""
    with pytest.raises(InvalidPrompt, match=problem):
        await rerun_model(await read_history("one-tool"), 4, agents=clerk(model=FunctionModel(echo)), prompt=prompt)


async def test_a_failure_of_the_model_is_reported() -> None:
    """The failure takes the place of the reply."""

    def fails(_: LlmRequest) -> str:
        raise ValueError("no")

    rerun = await rerun_model(await read_history("one-tool"), 4, agents=clerk(model=FunctionModel(fails)))
    assert rerun.failure is not None
    assert rerun.failure.error_type == "ModelUnavailable"
    assert not rerun.same


async def test_a_failed_model_call_may_succeed_now() -> None:
    """A recorded failure is compared with the current reply."""
    agents = clerk(model=ScriptedModel(says("now I can")))
    recording = await read_history("model-fails")
    rerun = await rerun_model(recording, len(recording.events), agents=agents)
    assert rerun.recorded_failure is not None
    assert {"failed", "text"} <= {each.place for each in rerun.differences}


@pytest.mark.parametrize("event", [1, 3])
async def test_an_event_without_a_model_call_is_refused(event: int) -> None:
    """A user's message and a tool response are refused, because they have no model call."""
    with pytest.raises(NoSuchActivity, match="No model produced event"):
        await rerun_model(await read_history("one-tool"), event, agents=scenario("one-tool"))


def _html(rerun: Any) -> str:
    return str(rerun._repr_html_())


def _text(rerun: Any) -> str:
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(rerun)
    return console.export_text()


@pytest.mark.parametrize("display", [_html, _text])
async def test_a_rerun_has_displays_for_terminals_and_notebooks(display: Callable[[Any], str]) -> None:
    """Both displays show both sides, the verdict and the key, and never render text of tools as markup."""

    def add(a: int, b: int) -> dict[str, str]:
        return {"sum": "[red]<b>4</b>"}

    text = display(await rerun_tool(await read_history("one-tool"), 3, agents=clerk(add)))
    assert "differs" in text
    assert "one-tool/fc-1" in text
    assert "<b>" not in text or display is _text
    assert "[red]" in text
