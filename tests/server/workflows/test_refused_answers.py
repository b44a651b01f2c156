"""Invalid answers are refused by update with a type and no trace, and recorded as ignored by signal."""

from typing import Any

import pytest

from tests.agents import Till
from tests.server.conftest import Serve
from tests.steps import (
    approve_and_finish,
    catch_refusal,
    count_events,
    reject_and_finish,
    start_and_wait,
    tool_responses,
    wait_for_calls,
    wait_for_ignored_answers,
    wait_until_quiet,
)
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

WRONG_DIGEST = "0" * 32

REFUSED: list[tuple[str, JsonObject]] = [
    ("UnknownCall", {"function_call_id": "fc-9", "action": "approve"}),
    ("UnknownCall", {"function_call_id": "some-other-invocation/fc-1", "action": "approve"}),
    ("UnknownCall", {"function_call_id": "fc-3", "action": "approve"}),
    ("DigestMismatch", {"function_call_id": "fc-1", "action": "approve", "digest": WRONG_DIGEST}),
    ("DigestMismatch", {"function_call_id": "fc-2", "action": "respond", "response": {}, "digest": WRONG_DIGEST}),
    ("InvalidAnswer", {"function_call_id": "fc-1", "action": "respond", "response": {"paid": 5}}),
    ("InvalidAnswer", {"function_call_id": "fc-1", "action": "progress", "response": {"percent": 50}}),
    ("InvalidAnswer", {"function_call_id": "fc-2", "action": "edit", "args": {"purpose": "y"}}),
]
"""Reasons and well-formed answers, in an invocation where fc-1 needs a confirmation, fc-2 waits and fc-3 has run."""

MALFORMED: list[object] = [
    None,
    "approve",
    5,
    [],
    ["fc-1", "approve"],
    {},
    {"function_call_id": "fc-1"},
    {"action": "approve"},
    {"function_call_id": "fc-1", "action": "APPROVE"},
    {"function_call_id": "fc-1", "action": "yes"},
    {"function_call_id": "fc-1", "action": True},
    {"function_call_id": "", "action": "approve"},
    {"function_call_id": "f" * 201, "action": "approve"},
    {"function_call_id": 1, "action": "approve"},
    {"function_call_id": "fc-1", "action": "approve", "response": "yes"},
    {"function_call_id": "fc-1", "action": "approve", "comment": {"text": "fine"}},
    {"function_call_id": "fc-1", "action": "edit"},
    {"function_call_id": "fc-1", "action": "edit", "args": [5]},
    {"function_call_id": "fc-2", "action": "respond"},
    {"function_call_id": "fc-2", "action": "progress"},
    {"function_call_id": "fc-2", "action": "progress", "response": {}, "wake": "perhaps"},
]
"""Values that are not answers."""


def ask(purpose: str) -> None:
    """Ask somebody."""


def look() -> str:
    """Look something up."""
    return "seen"


def payer(till: Till, *replies: Any) -> tuple[Agent, ScriptedModel]:
    """Return an agent that pays after a confirmation, asks, and looks things up; and its model, which calls all of
    them.
    """
    three_calls = calls(("pay", {"amount": 5}), ("ask", {"purpose": "x"}), ("look", {}))
    model = ScriptedModel(three_calls, *replies)
    tools = [FunctionTool(till.pay, require_confirmation=True), LongRunningFunctionTool(ask), look]
    return Agent(name="payer", model=model, tools=tools), model


async def submit(invocation: Invocation, answer: object) -> Any:
    """Submit an answer by update, as any Temporal client would."""
    return await invocation.handle.execute_update("submit_answer", answer)


@pytest.mark.parametrize("channel", ["signal", "update"])
async def test_invalid_answers_change_nothing(serve: Serve, channel: str) -> None:
    """After unknown calls, wrong digests, wrong actions and non-answers, every call can still be answered."""
    till = Till()
    agent, model = payer(till, says("Done."))
    refused = [*REFUSED, *(("InvalidAnswer", answer) for answer in MALFORMED)]
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay, ask, look"), "fc-1", "fc-2")
        await wait_until_quiet(invocation)
        before = await count_events(invocation)
        if channel == "update":
            assert [await catch_refusal(submit(invocation, answer)) for _, answer in refused] == [
                why for why, _ in refused
            ]
            assert await count_events(invocation) == before
        else:
            for _, answer in refused:
                await invocation.handle.signal("answer", answer)
            assert await wait_for_ignored_answers(invocation, len(refused)) == [why for why, _ in refused]
        assert (till.paid, len(model.requests)) == ([], 1)
        await wait_for_calls(invocation, "fc-1", "fc-2")
        await invocation.approve("fc-1")
        await invocation.respond({"answer": 42}, "fc-2")
        assert (await invocation.result()).text == "Done."
        assert till.paid == [5]
        assert tool_responses(model.requests[1]) == [{"paid": 5}, {"answer": 42}, {"result": "seen"}]


@pytest.mark.parametrize(("channel", "first"), [("update", "approve"), ("signal", "reject")])
async def test_the_first_answer_wins(serve: Serve, channel: str, first: str) -> None:
    """Repeated or opposite answers do not count; the refusal of a forged one does not reveal the first answer."""
    till = Till()
    agent, model = payer(till, says("Done."))
    later: list[tuple[str, JsonObject]] = [
        ("AlreadyAnswered", {"function_call_id": "fc-1", "action": "approve"}),
        ("AlreadyAnswered", {"function_call_id": "fc-1", "action": "reject"}),
        ("AlreadyAnswered", {"function_call_id": "fc-1", "action": "edit", "args": {"amount": 900}}),
        ("AlreadyAnswered", {"function_call_id": "fc-1-confirmation", "action": "approve"}),
        ("DigestMismatch", {"function_call_id": "fc-1", "action": "approve", "digest": WRONG_DIGEST}),
    ]
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay, ask, look"), "fc-1", "fc-2")
        await submit(invocation, {"function_call_id": "fc-1", "action": first, "by": "dana"})
        await wait_until_quiet(invocation)
        if channel == "update":
            assert [await catch_refusal(submit(invocation, answer)) for _, answer in later] == [why for why, _ in later]
        else:
            for _, answer in later:
                await invocation.handle.signal("answer", answer)
            assert await wait_for_ignored_answers(invocation, len(later)) == [why for why, _ in later]
        await approve_and_finish(invocation, "fc-2")
        assert till.paid == ([5] if first == "approve" else [])
        paid = {"paid": 5} if first == "approve" else {"error": "This tool call is rejected."}
        assert tool_responses(model.requests[1]) == [paid, {"status": "approved"}, {"result": "seen"}]


async def test_a_repeated_edit_is_refused_as_already_answered(serve: Serve) -> None:
    """The digest is that of the displayed arguments, also after an approver has edited them."""
    till = Till()
    agent, _ = payer(till, says("Done."))
    async with serve(agent) as env:
        invocation = await env.client.start("payer", "pay, ask, look")
        [call] = [c for c in await wait_for_calls(invocation, "fc-1", "fc-2") if c.function_call_id == "fc-1"]
        edit = {"function_call_id": "fc-1", "action": "edit", "args": {"amount": 4}, "digest": call.digest}
        await submit(invocation, edit)
        await wait_until_quiet(invocation)
        assert await catch_refusal(submit(invocation, edit)) == "AlreadyAnswered"
        await wait_for_calls(invocation, "fc-2")
        await approve_and_finish(invocation, "fc-2")
        assert till.paid == [4]


async def test_a_closed_long_running_call_accepts_no_more_answers(serve: Serve) -> None:
    """After `respond`, neither another response nor progress counts, although the invocation continues."""
    agent, model = payer(Till(), says("Done."))
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay, ask, look"), "fc-1", "fc-2")
        await invocation.respond({"answer": 42}, "fc-2")
        await wait_until_quiet(invocation)
        for action in ("respond", "progress", "approve", "reject"):
            late = {"function_call_id": "fc-2", "action": action, "response": {"answer": 43}}
            assert await catch_refusal(submit(invocation, late)) == "AlreadyAnswered"
        await reject_and_finish(invocation, "fc-1")
        assert tool_responses(model.requests[1])[1] == {"answer": 42}
