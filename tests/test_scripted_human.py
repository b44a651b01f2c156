"""The person in tests: answers whatever waits, as scripted."""

from tests.conftest import Serve
from waystation.agents import Agent
from waystation.testing import ScriptedHuman, ScriptedModel, calls, responses, says
from waystation.tools import LongRunningFunctionTool


def ask(what: str) -> None:
    """Ask, and say nothing meanwhile."""


def order(what: str) -> dict[str, str]:
    """Order, and say so."""
    return {"status": "ordered"}


async def test_a_call_that_waits_in_silence_is_answered(serve: Serve) -> None:
    """Though no event tells that it has begun to wait."""
    model = ScriptedModel(calls(("ask", {"what": "x"}), ("ask", {"what": "y"})), says("Done."))
    async with serve(Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])) as env:
        human = ScriptedHuman("approve", "reject")
        events = await human.attend(await env.client.start("asker", "go"))
    assert [call.args for call in human.asked] == [{"what": "x"}, {"what": "y"}]
    assert [event.author for event in events][-1] == "asker"
    assert [response["status"] for _, response in responses(model.requests[-1])] == ["approved", "rejected"]


async def test_a_progress_is_followed_by_the_next_answer(serve: Serve) -> None:
    """Both are recorded in that order, and the second one closes the call."""
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
