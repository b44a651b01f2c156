"""Answers to a long-running call, and when the model receives them."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.steps import answer_and_finish, start_and_wait, tool_responses, wait_for_calls, wait_for_model_calls
from waystation.agents import Agent
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool


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
        invocation = await start_and_wait(env.client.start("asker", "ask"), "fc-1")
        fields = dict(answer)
        assert (
            await answer_and_finish(invocation, fields.pop("action"), "fc-1", signal=channel == "signal", **fields)
        ).text == "Thanks."
        assert tool_responses(model.requests[1]) == [response]
        [event] = [e for e in (await invocation.log()).state.events if e.function_responses()]
        assert event.author == "user"
        part = {"functionResponse": {"id": "fc-1", "name": "ask", "response": response}}
        assert event.content == {"role": "user", "parts": [part]}


async def test_an_interim_result_reaches_the_model_and_the_answer_replaces_it(serve: Serve) -> None:
    """The model is called with the interim response, and after the answer with the answer in its place."""

    def start() -> str:
        return "queued"

    model = ScriptedModel(calls(("start", {})), says("It is pending."), says("It is done."))
    async with serve(asker(model, start)) as env:
        invocation = await env.client.start("asker", "start")
        assert tool_responses(await wait_for_model_calls(model, 2)) == [{"result": "queued"}]
        [call] = await wait_for_calls(invocation, "fc-1")
        assert call.interim == {"result": "queued"}
        await invocation.respond({"done": True}, "fc-1")
        assert (await invocation.result()).text == "It is done."
        assert tool_responses(model.requests[2]) == [{"done": True}]
        assert len(model.requests) == 3


async def test_progress_calls_the_model_and_leaves_the_call_open(serve: Serve) -> None:
    """The model receives each progress report; a later answer closes the call."""
    model = ScriptedModel(calls(("ask", {"purpose": "x"})), says("Half."), says("More."), says("All."))
    async with serve(asker(model, ask)) as env:
        invocation = await start_and_wait(env.client.start("asker", "ask"), "fc-1")
        await invocation.answer("progress", "fc-1", response={"percent": 50})
        assert tool_responses(await wait_for_model_calls(model, 2)) == [{"percent": 50}]
        await invocation.answer("progress", "fc-1", response={"percent": 80})
        assert tool_responses(await wait_for_model_calls(model, 3)) == [{"percent": 80}]
        assert [call["interim"] for call in await invocation.handle.query("pending")] == [{"percent": 80}]
        await invocation.respond({"percent": 100}, "fc-1")
        assert (await invocation.result()).text == "All."
        assert tool_responses(model.requests[3]) == [{"percent": 100}]
        assert len(model.requests) == 4


async def test_a_batch_without_interim_responses_reaches_the_model_once(serve: Serve) -> None:
    """The model is called after the second of two answers, with both in call order."""
    order = ("fc-2", "fc-1")
    model = ScriptedModel(calls(("ask", {"purpose": "a"}), ("ask", {"purpose": "b"})), says("Thanks."))
    async with serve(asker(model, ask)) as env:
        invocation = await start_and_wait(env.client.start("asker", "ask twice"), "fc-1", "fc-2")
        await invocation.respond({"to": order[0]}, order[0])
        await wait_for_calls(invocation, order[1])
        assert len(model.requests) == 1
        await invocation.respond({"to": order[1]}, order[1])
        await invocation.result()
        assert [tool_responses(request) for request in model.requests[1:]] == [[{"to": "fc-1"}, {"to": "fc-2"}]]


async def test_each_answer_after_an_interim_response_calls_the_model(serve: Serve) -> None:
    """Every later answer reaches the model as it comes."""
    tickets = calls(("ticket", {"purpose": "a"}), ("ticket", {"purpose": "b"}))
    model = ScriptedModel(tickets, says("Two tickets."), says("One."), says("Both."))
    async with serve(asker(model, ticket)) as env:
        invocation = await env.client.start("asker", "two tickets")
        await wait_for_model_calls(model, 2)
        await wait_for_calls(invocation, "fc-1", "fc-2")
        await invocation.respond({"to": "fc-2"}, "fc-2")
        pending = {"status": "pending", "ticket": 1}
        assert tool_responses(await wait_for_model_calls(model, 3)) == [pending, {"to": "fc-2"}]
        await wait_for_calls(invocation, "fc-1")
        await invocation.respond({"to": "fc-1"}, "fc-1")
        assert (await invocation.result()).text == "Both."
        assert tool_responses(model.requests[3]) == [{"to": "fc-1"}, {"to": "fc-2"}]
        assert len(model.requests) == 4
