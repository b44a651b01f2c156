"""What approve, reject, respond and progress do to a long-running call, and when the model hears of it."""

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
    asked,
    event_count,
    responded,
    told,
    until,
    until_call,
    until_waiting,
    waiting,
)
from waystation.agents import Agent
from waystation.core import JsonObject
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def ask(purpose: str) -> None:
    """Ask somebody, and say nothing yet."""


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
        ("update", {"action": "respond", "response": {"colour": "red"}}, {"colour": "red"}),
    ],
)
async def test_an_answer_becomes_the_response_that_the_wire_contract_says(
    serve: Serve, channel: str, answer: dict[str, Any], response: JsonObject
) -> None:
    """Approve and reject become a status, respond exactly its response; by signal and by update alike."""
    model = ScriptedModel(calls(("ask", {"purpose": "x"})), says("Thanks."))
    async with serve(asker(model, ask)) as env:
        invocation = await until_waiting(env.client.start("asker", "ask"), "fc-1")
        fields = dict(answer)
        assert (
            await answer_and_finish(invocation, fields.pop("action"), "fc-1", signal=channel == "signal", **fields)
        ).text == "Thanks."
        assert told(model.requests[1]) == [response]
        [event] = [e for e in (await invocation.log()).state.events if e.function_responses()]
        assert event.author == "user"
        part = {"functionResponse": {"id": "fc-1", "name": "ask", "response": response}}
        assert event.content == {"role": "user", "parts": [part]}


# Every falsy value is in tests/unit/tools/test_outcome.py.
@pytest.mark.parametrize("nothing", [None, []])
async def test_a_call_whose_function_returns_nothing_waits_in_silence(serve: Serve, nothing: object) -> None:
    """A falsy result is no response: the model is not called before the answer."""

    def start() -> Any:
        return nothing

    model = ScriptedModel(calls(("start", {})), says("Started."))
    async with serve(asker(model, start)) as env:
        invocation, call = await until_call(env.client.start("asker", "start"), "fc-1")
        assert (call.interim, len(model.requests)) == (None, 1)
        await invocation.respond({"done": True}, "fc-1")
        await invocation.result()
        assert told(model.requests[1]) == [{"done": True}]


async def test_state_written_before_a_silent_wait_is_recorded(serve: Serve) -> None:
    """Unlike in ADK: a long-running function that returns nothing keeps what it wrote."""

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
async def test_an_interim_result_is_told_at_once_and_replaced_by_the_answer(
    serve: Serve, interim: object, response: JsonObject
) -> None:
    """The model is called with the interim response; after the answer it reads the answer in its place."""

    def start() -> Any:
        return interim

    model = ScriptedModel(calls(("start", {})), says("It is pending."), says("It is done."))
    async with serve(asker(model, start)) as env:
        invocation = await env.client.start("asker", "start")
        assert told(await asked(model, 2)) == [response]
        [call] = await waiting(invocation, "fc-1")
        assert call.interim == response
        await invocation.respond({"done": True}, "fc-1")
        assert (await invocation.result()).text == "It is done."
        assert told(model.requests[2]) == [{"done": True}]
        assert len(model.requests) == 3


async def test_a_tool_that_says_will_continue_false_is_answered_at_once(serve: Serve) -> None:
    """A final FunctionResponse closes the call: nobody is waited for."""

    def start() -> types.FunctionResponse:
        return types.FunctionResponse(response={"done": 1}, will_continue=False)

    model = ScriptedModel(calls(("start", {})), says("Done."))
    async with serve(asker(model, start)) as env:
        result = await env.client.run("asker", "start")
        assert result.text == "Done."
        assert told(model.requests[1]) == [{"done": 1}]


async def test_progress_calls_the_model_and_leaves_the_call_open(serve: Serve) -> None:
    """Each progress is told; the call is closed by the answer that follows."""
    model = ScriptedModel(calls(("ask", {"purpose": "x"})), says("Half."), says("More."), says("All."))
    async with serve(asker(model, ask)) as env:
        invocation = await until_waiting(env.client.start("asker", "ask"), "fc-1")
        await invocation.answer("progress", "fc-1", response={"percent": 50})
        assert told(await asked(model, 2)) == [{"percent": 50}]
        await invocation.answer("progress", "fc-1", response={"percent": 80})
        assert told(await asked(model, 3)) == [{"percent": 80}]
        assert [call["interim"] for call in await invocation.handle.query("pending")] == [{"percent": 80}]
        await invocation.respond({"percent": 100}, "fc-1")
        assert (await invocation.result()).text == "All."
        assert told(model.requests[3]) == [{"percent": 100}]
        assert len(model.requests) == 4


async def test_quiet_progress_is_recorded_but_does_not_call_the_model(serve: Serve) -> None:
    """With `wake` false a progress is an event and no reason to call the model."""
    model = ScriptedModel(calls(("ticket", {"purpose": "x"})), says("Pending."), says("All."))
    async with serve(asker(model, ticket)) as env:
        invocation = await env.client.start("asker", "ask")
        await asked(model, 2)
        await waiting(invocation, "fc-1")
        await invocation.answer("progress", "fc-1", response={"percent": 50}, wake=False)
        log = await responded(invocation, "fc-1", "fc-1")
        assert log.state.events[-1].function_responses()[0]["response"] == {"percent": 50}
        await invocation.answer("progress", "fc-1", response={"percent": 80}, wake=False)
        await responded(invocation, "fc-1", "fc-1", "fc-1")
        assert len(model.requests) == 2
        await invocation.respond({"percent": 100}, "fc-1")
        await invocation.result()
        assert [told(request) for request in model.requests[1:]] == [
            [{"status": "pending", "ticket": 1}],
            [{"percent": 100}],
        ]


@pytest.mark.parametrize("order", [("fc-1", "fc-2"), ("fc-2", "fc-1")])
async def test_a_silent_batch_is_told_once_all_of_it_is_answered_in_call_order(
    serve: Serve, order: tuple[str, str]
) -> None:
    """Two calls wait in silence: whichever is answered first, the model is called once, after the second."""
    model = ScriptedModel(calls(("ask", {"purpose": "a"}), ("ask", {"purpose": "b"})), says("Thanks."))
    async with serve(asker(model, ask)) as env:
        invocation = await until_waiting(env.client.start("asker", "ask twice"), "fc-1", "fc-2")
        await invocation.respond({"to": order[0]}, order[0])
        await waiting(invocation, order[1])
        assert len(model.requests) == 1
        await invocation.respond({"to": order[1]}, order[1])
        await invocation.result()
        assert [told(request) for request in model.requests[1:]] == [[{"to": "fc-1"}, {"to": "fc-2"}]]


@pytest.mark.parametrize("order", [("fc-1", "fc-2"), ("fc-2", "fc-1")])
async def test_each_answer_to_a_call_that_had_an_interim_response_calls_the_model(
    serve: Serve, order: tuple[str, str]
) -> None:
    """After the interim responses were told, every later answer is told as it comes."""
    wanted = calls(("ticket", {"purpose": "a"}), ("ticket", {"purpose": "b"}))
    model = ScriptedModel(wanted, says("Two tickets."), says("One."), says("Both."))
    async with serve(asker(model, ticket)) as env:
        invocation = await env.client.start("asker", "two tickets")
        await asked(model, 2)
        await waiting(invocation, "fc-1", "fc-2")
        await invocation.respond({"to": order[0]}, order[0])
        pending = {"status": "pending", "ticket": 1}
        one = [{"to": "fc-1"}, pending] if order[0] == "fc-1" else [pending, {"to": "fc-2"}]
        assert told(await asked(model, 3)) == one
        await waiting(invocation, order[1])
        await invocation.respond({"to": order[1]}, order[1])
        assert (await invocation.result()).text == "Both."
        assert told(model.requests[3]) == [{"to": "fc-1"}, {"to": "fc-2"}]
        assert len(model.requests) == 4


async def test_answers_that_arrive_together_call_the_model_once(serve: Serve) -> None:
    """Two signals that one workflow task is given are one reason to call the model, not two."""
    wanted = calls(("ticket", {"purpose": "a"}), ("ticket", {"purpose": "b"}))
    model = ScriptedModel(wanted, says("Two tickets."), says("Both."))
    async with serve(asker(model, ticket), verify=False) as env:
        queue = env.client.task_queue
        invocation = await env.client.start("asker", "two tickets")
        await asked(model, 2)
        await waiting(invocation, "fc-1", "fc-2")
        await until(lambda: _text_is(invocation, "Two tickets."), "the model's second reply")
    await invocation.respond({"to": "fc-2"}, "fc-2", signal=True)
    await invocation.respond({"to": "fc-1"}, "fc-1", signal=True)
    async with serve(asker(model, ticket), task_queue=queue, adopt=[invocation]):
        assert (await invocation.result()).text == "Both."
        assert [told(request) for request in model.requests[2:]] == [[{"to": "fc-1"}, {"to": "fc-2"}]]


async def _text_is(invocation: Any, text: str) -> bool:
    return bool((await invocation.log()).state.events[-1].content == {"role": "model", "parts": [{"text": text}]})


async def test_an_answer_while_the_model_works_is_told_with_the_next_call(serve: Serve) -> None:
    """The reply under way does not know the answer; the model is called again, and once."""
    model = HeldModel(calls(("ticket", {"purpose": "x"})), says("Pending."), says("Done."), held_call=2)
    async with serve(asker(model, ticket)) as env:
        invocation = await env.client.start("asker", "ticket")
        await model.gate.reached()
        await waiting(invocation, "fc-1")
        await invocation.respond({"done": True}, "fc-1")
        model.gate.open()
        assert (await invocation.result()).text == "Done."
        assert [told(request) for request in model.requests[1:]] == [
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


async def test_an_answer_while_a_sibling_runs_waits_for_it(serve: Serve) -> None:
    """A batch is told as one: the answer, and what the slower sibling returned."""
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
        assert told(model.requests[1]) == [{"status": "approved"}, {"result": "slow"}]
        assert len(model.requests) == 2


async def test_an_answer_before_the_function_has_returned_stands(serve: Serve) -> None:
    """A person may be quicker than the function that asked: its interim result is then old news, its state is not."""
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
        assert [told(request) for request in model.requests[1:]] == [[{"status": "approved"}]]


async def test_progress_before_the_function_has_returned_is_newer_than_its_result(serve: Serve) -> None:
    """What was reported from outside meanwhile is told, not the function's older interim result."""
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
        assert told(await asked(model, 2)) == [{"percent": 50}]
        [call] = await waiting(invocation, "fc-1")
        assert call.interim == {"percent": 50}
        await invocation.respond({"percent": 100}, "fc-1")
        await invocation.result()
        assert told(model.requests[2]) == [{"percent": 100}]


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


async def test_a_long_running_call_that_skips_summarization_waits_and_its_answer_is_told(serve: Serve) -> None:
    """The interim response is not told, but the call stays open and the answer wakes the model."""

    def start(tool_context: ToolContext) -> JsonObject:
        tool_context.actions.skip_summarization = True
        return {"status": "pending"}

    model = ScriptedModel(calls(("start", {})), says("Done."))
    async with serve(asker(model, start)) as env:
        invocation = await until_waiting(env.client.start("asker", "start"), "fc-1")
        await responded(invocation, "fc-1")
        assert len(model.requests) == 1
        assert (await approve_and_finish(invocation, "fc-1")).text == "Done."
        assert told(model.requests[1]) == [{"status": "approved"}]


async def test_a_long_running_function_that_raises_is_told_and_not_waited_for(serve: Serve) -> None:
    """Nothing was started, so nobody can answer."""

    def start() -> None:
        raise RuntimeError("no printer")

    model = ScriptedModel(calls(("start", {})), says("It failed."))
    async with serve(asker(model, start)) as env:
        result = await asyncio.wait_for(env.client.run("asker", "start"), 20)
        assert result.text == "It failed."
        assert told(model.requests[1]) == [{"error": "no printer", "error_type": "RuntimeError"}]
