"""The scripted person answers every pending call in tests."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.testing import ScriptedHuman, ScriptedModel, calls, responses, says
from waystation.tools import LongRunningFunctionTool


def ask(what: str) -> None:
    """Ask, and return nothing yet."""


def order(what: str) -> dict[str, str]:
    """Order, and return an interim response."""
    return {"status": "ordered"}


async def test_a_call_without_an_interim_response_is_answered(serve: Serve) -> None:
    """A call is answered although no event shows that it is pending."""
    model = ScriptedModel(calls(("ask", {"what": "x"}), ("ask", {"what": "y"})), says("Done."))
    async with serve(Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])) as env:
        human = ScriptedHuman("approve", "reject")
        events = await human.attend(await env.client.start("asker", "go"))
    # Either may be the first to wait.
    assert sorted(call.args["what"] for call in human.asked) == ["x", "y"]
    assert [event.author for event in events][-1] == "asker"
    assert sorted(response["status"] for _, response in responses(model.requests[-1])) == ["approved", "rejected"]


async def test_progress_is_followed_by_the_next_answer(serve: Serve) -> None:
    """Progress and the next answer are recorded in this order, and the second one closes the call."""
    model = ScriptedModel(calls(("order", {"what": "x"})), *map(says, ("Ordered.", "Sent.", "Here.")))
    async with serve(Agent(name="clerk", model=model, tools=[LongRunningFunctionTool(order)])) as env:
        human = ScriptedHuman(
            {"action": "progress", "response": {"status": "sent"}},
            {"action": "respond", "response": {"status": "here"}},
        )
        invocation = await env.client.start("clerk", "go")
        events = await human.attend(invocation)
    answers = [response["response"]["status"] for event in events for response in event.function_responses()]
    assert answers == ["ordered", "sent", "here"]
    assert [receipt["action"] for receipt in human.receipts] == ["progress", "respond"]


@pytest.mark.usefixtures("logs")
async def test_a_call_without_a_scripted_answer_is_reported(serve: Serve) -> None:
    """A call without an answer is reported once, because a test would wait forever; others may still answer it."""
    model = ScriptedModel(calls(("order", {"what": "x"})), says("Wait."), says("Done."))
    reports: list[tuple[object, ...]] = []
    logged = asyncio.Event()

    def notice(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if line["event"] == "scripted_human.answers_exhausted":
            reports.append((line["tool"], line["invocation_id"], line["function_call_id"]))
            logged.set()
        return line

    async with serve(Agent(name="clerk", model=model, tools=[LongRunningFunctionTool(order)])) as env:
        invocation = await env.client.start("clerk", "go")
        with capture_logs(processors=[notice]):
            attending = asyncio.create_task(ScriptedHuman().attend(invocation))
            await logged.wait()
            await invocation.approve("fc-1")
            await attending
    assert reports == [("order", invocation.id, "fc-1")]
