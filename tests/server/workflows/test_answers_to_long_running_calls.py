"""Answers to a long-running call, and when the model receives them."""

import asyncio
from typing import Any

import pytest
from google.genai import types

from tests.server.conftest import Serve
from tests.server.workflows.outside import (
    Gate,
    HeldModel,
    answer_and_finish,
    approve_and_finish,
    event_count,
    responded,
    tool_responses,
    until,
    until_call,
    until_waiting,
    wait_for_model_calls,
    waiting,
)
from waystation.agents import Agent
from waystation.core import JsonObject
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def ask(purpose: str) -> None:
    """Ask someone, and return nothing yet."""


def ticket(purpose: str) -> JsonObject:
    """Open a ticket."""
    return {"status": "pending", "ticket": 1}


def asker(model: ScriptedModel, *functions: Any) -> Agent:
    """Return an agent with these long-running tools."""
    return Agent(name="asker", model=model, tools=[LongRunningFunctionTool(function) for function in functions])


# Every answer is in tests/unit/core/test_responses.py.
@pytest.mark.parametrize(
    ("channel", "answer", "response"),
    [
        (
            "signal",
            {"action": "approve", "response": {"limit": 9}, "comment": "fine", "by": "dana"},
            {"status": "approved", "limit": 9, "comment": "fine"},
        ),
        ("update", {"action": "respond", "response": {"color": "red"}}, {"color": "red"}),
    ],
)
async def test_an_answer_becomes_the_response_of_the_wire_contract(
    serve: Serve, channel: str, answer: dict[str, Any], response: JsonObject
) -> None:
    """Approve and reject become a status, and respond exactly its response, by signal and by update."""
    model = ScriptedModel(calls(("ask", {"purpose": "x"})), says("Thanks."))
    async with serve(asker(model, ask)) as env:
        invocation = await until_waiting(env.client.start("asker", "ask"), "fc-1")
        fields = dict(answer)
        assert (
            await answer_and_finish(invocation, fields.pop("action"), "fc-1", signal=channel == "signal", **fields)
        ).text == "Thanks."
        assert tool_responses(model.requests[1]) == [response]
        [event] = [e for e in (await invocation.log()).state.events if e.function_responses()]
        assert event.author == "user"
        part = {"functionResponse": {"id": "fc-1", "name": "ask", "response": response}}
        assert event.content == {"role": "user", "parts": [part]}


# Every falsy value is in tests/unit/tools/test_outcome.py.
@pytest.mark.parametrize("nothing", [None, []])
async def test_a_call_whose_function_returns_nothing_waits_without_a_response(serve: Serve, nothing: object) -> None:
    """A falsy result is not a response, so the model is not called before the answer."""

    def start() -> Any:
        return nothing

    model = ScriptedModel(calls(("start", {})), says("Started."))
    async with serve(asker(model, start)) as env:
        invocation, call = await until_call(env.client.start("asker", "start"), "fc-1")
        assert (call.interim, len(model.requests)) == (None, 1)
        await invocation.respond({"done": True}, "fc-1")
        await invocation.result()
        assert tool_responses(model.requests[1]) == [{"done": True}]


async def test_state_of_a_function_that_returns_nothing_is_recorded(serve: Serve) -> None:
    """ADK loses it."""

    def start(tool_context: ToolContext) -> None:
        tool_context.state["ticket"] = 1

    model = ScriptedModel(calls(("start", {})), says("Started."))
    async with serve(asker(model, start)) as env:
        invocation = await until_waiting(env.client.start("asker", "start", user_id="starter"), "fc-1")
        assert await invocation.state() == {"ticket": 1}
        assert (await approve_and_finish(invocation, "fc-1")).state_delta == {"ticket": 1}


@pytest.mark.parametrize(
    ("interim", "response"), [({"status": "pending"}, {"status": "pending"}), ("queued", {"result": "queued"})]
)
async def test_an_interim_result_reaches_the_model_and_the_answer_replaces_it(
    serve: Serve, interim: object, response: JsonObject
) -> None:
    """The model is called with the interim response, and after the answer with the answer in its place."""

    def start() -> Any:
        return interim

    model = ScriptedModel(calls(("start", {})), says("It is pending."), says("It is done."))
    async with serve(asker(model, start)) as env:
        invocation = await env.client.start("asker", "start")
        assert tool_responses(await wait_for_model_calls(model, 2)) == [response]
        [call] = await waiting(invocation, "fc-1")
        assert call.interim == response
        await invocation.respond({"done": True}, "fc-1")
        assert (await invocation.result()).text == "It is done."
        assert tool_responses(model.requests[2]) == [{"done": True}]
        assert len(model.requests) == 3


async def test_will_continue_false_closes_a_call_at_once(serve: Serve) -> None:
    """A final FunctionResponse needs no answer."""

    def start() -> types.FunctionResponse:
        return types.FunctionResponse(response={"done": 1}, will_continue=False)

    model = ScriptedModel(calls(("start", {})), says("Done."))
    async with serve(asker(model, start)) as env:
        result = await env.client.run("asker", "start")
        assert result.text == "Done."
        assert tool_responses(model.requests[1]) == [{"done": 1}]


async def test_progress_calls_the_model_and_leaves_the_call_open(serve: Serve) -> None:
    """The model receives each progress report; a later answer closes the call."""
    model = ScriptedModel(calls(("ask", {"purpose": "x"})), says("Half."), says("More."), says("All."))
    async with serve(asker(model, ask)) as env:
        invocation = await until_waiting(env.client.start("asker", "ask"), "fc-1")
        await invocation.answer("progress", "fc-1", response={"percent": 50})
        assert tool_responses(await wait_for_model_calls(model, 2)) == [{"percent": 50}]
        await invocation.answer("progress", "fc-1", response={"percent": 80})
        assert tool_responses(await wait_for_model_calls(model, 3)) == [{"percent": 80}]
        assert [call["interim"] for call in await invocation.handle.query("pending")] == [{"percent": 80}]
        await invocation.respond({"percent": 100}, "fc-1")
        assert (await invocation.result()).text == "All."
        assert tool_responses(model.requests[3]) == [{"percent": 100}]
        assert len(model.requests) == 4


async def test_progress_with_wake_false_does_not_call_the_model(serve: Serve) -> None:
    """Records an event only."""
    model = ScriptedModel(calls(("ticket", {"purpose": "x"})), says("Pending."), says("All."))
    async with serve(asker(model, ticket)) as env:
        invocation = await env.client.start("asker", "ask")
        await wait_for_model_calls(model, 2)
        await waiting(invocation, "fc-1")
        await invocation.answer("progress", "fc-1", response={"percent": 50}, wake=False)
        log = await responded(invocation, "fc-1", "fc-1")
        assert log.state.events[-1].function_responses()[0]["response"] == {"percent": 50}
        await invocation.answer("progress", "fc-1", response={"percent": 80}, wake=False)
        await responded(invocation, "fc-1", "fc-1", "fc-1")
        assert len(model.requests) == 2
        await invocation.respond({"percent": 100}, "fc-1")
        await invocation.result()
        assert [tool_responses(request) for request in model.requests[1:]] == [
            [{"status": "pending", "ticket": 1}],
            [{"percent": 100}],
        ]


@pytest.mark.parametrize("order", [("fc-1", "fc-2"), ("fc-2", "fc-1")])
async def test_a_batch_without_interim_responses_reaches_the_model_once(serve: Serve, order: tuple[str, str]) -> None:
    """The model is called after the second of two answers, with both in call order."""
    model = ScriptedModel(calls(("ask", {"purpose": "a"}), ("ask", {"purpose": "b"})), says("Thanks."))
    async with serve(asker(model, ask)) as env:
        invocation = await until_waiting(env.client.start("asker", "ask twice"), "fc-1", "fc-2")
        await invocation.respond({"to": order[0]}, order[0])
        await waiting(invocation, order[1])
        assert len(model.requests) == 1
        await invocation.respond({"to": order[1]}, order[1])
        await invocation.result()
        assert [tool_responses(request) for request in model.requests[1:]] == [[{"to": "fc-1"}, {"to": "fc-2"}]]


@pytest.mark.parametrize("order", [("fc-1", "fc-2"), ("fc-2", "fc-1")])
async def test_each_answer_after_an_interim_response_calls_the_model(serve: Serve, order: tuple[str, str]) -> None:
    """Every later answer reaches the model as it comes."""
    tickets = calls(("ticket", {"purpose": "a"}), ("ticket", {"purpose": "b"}))
    model = ScriptedModel(tickets, says("Two tickets."), says("One."), says("Both."))
    async with serve(asker(model, ticket)) as env:
        invocation = await env.client.start("asker", "two tickets")
        await wait_for_model_calls(model, 2)
        await waiting(invocation, "fc-1", "fc-2")
        await invocation.respond({"to": order[0]}, order[0])
        pending = {"status": "pending", "ticket": 1}
        one = [{"to": "fc-1"}, pending] if order[0] == "fc-1" else [pending, {"to": "fc-2"}]
        assert tool_responses(await wait_for_model_calls(model, 3)) == one
        await waiting(invocation, order[1])
        await invocation.respond({"to": order[1]}, order[1])
        assert (await invocation.result()).text == "Both."
        assert tool_responses(model.requests[3]) == [{"to": "fc-1"}, {"to": "fc-2"}]
        assert len(model.requests) == 4


async def test_answers_that_arrive_together_call_the_model_once(serve: Serve) -> None:
    """Two signals in one workflow task cause one model call."""
    tickets = calls(("ticket", {"purpose": "a"}), ("ticket", {"purpose": "b"}))
    model = ScriptedModel(tickets, says("Two tickets."), says("Both."))
    async with serve(asker(model, ticket), verify=False) as env:
        queue = env.client.task_queue
        invocation = await env.client.start("asker", "two tickets")
        await wait_for_model_calls(model, 2)
        await waiting(invocation, "fc-1", "fc-2")
        await until(lambda: _text_is(invocation, "Two tickets."), "the model's second reply")
    await invocation.respond({"to": "fc-2"}, "fc-2", signal=True)
    await invocation.respond({"to": "fc-1"}, "fc-1", signal=True)
    async with serve(asker(model, ticket), task_queue=queue, adopt=[invocation]):
        assert (await invocation.result()).text == "Both."
        assert [tool_responses(request) for request in model.requests[2:]] == [[{"to": "fc-1"}, {"to": "fc-2"}]]


async def _text_is(invocation: Any, text: str) -> bool:
    return bool((await invocation.log()).state.events[-1].content == {"role": "model", "parts": [{"text": text}]})


async def test_an_answer_during_a_model_call_reaches_the_model_with_the_next_call(serve: Serve) -> None:
    """The reply in flight does not know the answer, so the model is called once more."""
    model = HeldModel(calls(("ticket", {"purpose": "x"})), says("Pending."), says("Done."), held_call=2)
    async with serve(asker(model, ticket)) as env:
        invocation = await env.client.start("asker", "ticket")
        await model.gate.reached()
        await waiting(invocation, "fc-1")
        await invocation.respond({"done": True}, "fc-1")
        model.gate.open()
        assert (await invocation.result()).text == "Done."
        assert [tool_responses(request) for request in model.requests[1:]] == [
            [{"status": "pending", "ticket": 1}],
            [{"done": True}],
        ]
        texts = [event.content["parts"][0] for event in (await invocation.log()).state.events if event.content]
        assert [next(iter(part)) for part in texts] == [
            "text",
            "functionCall",
            "functionResponse",
            "text",
            "functionResponse",
            "text",
        ]


async def test_an_answer_waits_for_a_running_sibling(serve: Serve) -> None:
    """The model receives both together."""
    gate = Gate()

    async def slow() -> str:
        await gate.passed()
        return "slow"

    model = ScriptedModel(calls(("ask", {"purpose": "x"}), ("slow", {})), says("Both."))
    agent = Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask), slow])
    async with serve(agent) as env:
        invocation = await until_waiting(env.client.start("asker", "both"), "fc-1")
        await gate.reached()
        await invocation.approve("fc-1")
        assert len(model.requests) == 1
        gate.open()
        assert (await invocation.result()).text == "Both."
        assert tool_responses(model.requests[1]) == [{"status": "approved"}, {"result": "slow"}]
        assert len(model.requests) == 2


async def test_an_answer_before_the_function_has_returned_counts(serve: Serve) -> None:
    """The later interim result is outdated, but its state is kept."""
    gate = Gate()

    async def start(tool_context: ToolContext) -> JsonObject:
        tool_context.state["ticket"] = 1
        await gate.passed()
        return {"status": "pending"}

    model = ScriptedModel(calls(("start", {})), says("Approved."))
    async with serve(asker(model, start)) as env:
        invocation = await env.client.start("asker", "start")
        await gate.reached()
        before = await event_count(invocation)
        await invocation.approve("fc-1")
        assert await event_count(invocation) > before
        gate.open()
        result = await invocation.result()
        assert (result.text, result.state_delta) == ("Approved.", {"ticket": 1})
        assert [tool_responses(request) for request in model.requests[1:]] == [[{"status": "approved"}]]


async def test_progress_before_the_function_has_returned_is_newer_than_its_result(serve: Serve) -> None:
    """The model receives the report instead of the function's older interim result."""
    gate = Gate()

    async def start() -> JsonObject:
        await gate.passed()
        return {"percent": 0}

    model = ScriptedModel(calls(("start", {})), says("Half."), says("All."))
    async with serve(asker(model, start)) as env:
        invocation = await env.client.start("asker", "start")
        await gate.reached()
        await invocation.answer("progress", "fc-1", response={"percent": 50})
        gate.open()
        assert tool_responses(await wait_for_model_calls(model, 2)) == [{"percent": 50}]
        [call] = await waiting(invocation, "fc-1")
        assert call.interim == {"percent": 50}
        await invocation.respond({"percent": 100}, "fc-1")
        await invocation.result()
        assert tool_responses(model.requests[2]) == [{"percent": 100}]


async def test_a_tool_that_skips_summarization_ends_the_turn(serve: Serve) -> None:
    """The model is not called with the response; its event is final."""

    def show(tool_context: ToolContext) -> JsonObject:
        tool_context.actions.skip_summarization = True
        return {"shown": True}

    model = ScriptedModel(calls(("show", {})))
    async with serve(Agent(name="shower", model=model, tools=[show])) as env:
        invocation = await env.client.start("shower", "show")
        result = await invocation.result()
        assert (result.status, result.text, len(model.requests)) == ("completed", "", 1)
        last = (await invocation.log()).state.events[-1]
        assert (last.actions.skip_summarization, last.is_final_response()) == (True, True)


async def test_a_long_running_call_that_skips_summarization_waits_for_its_answer(serve: Serve) -> None:
    """The model does not receive the interim response, but the answer calls it."""

    def start(tool_context: ToolContext) -> JsonObject:
        tool_context.actions.skip_summarization = True
        return {"status": "pending"}

    model = ScriptedModel(calls(("start", {})), says("Done."))
    async with serve(asker(model, start)) as env:
        invocation = await until_waiting(env.client.start("asker", "start"), "fc-1")
        await responded(invocation, "fc-1")
        assert len(model.requests) == 1
        assert (await approve_and_finish(invocation, "fc-1")).text == "Done."
        assert tool_responses(model.requests[1]) == [{"status": "approved"}]


async def test_a_long_running_function_that_raises_is_reported_and_closed(serve: Serve) -> None:
    """Nothing was started, so nobody can answer."""

    def start() -> None:
        raise RuntimeError("no printer")

    model = ScriptedModel(calls(("start", {})), says("It failed."))
    async with serve(asker(model, start)) as env:
        result = await asyncio.wait_for(env.client.run("asker", "start"), 20)
        assert result.text == "It failed."
        assert tool_responses(model.requests[1]) == [{"error": "no printer", "error_type": "RuntimeError"}]
