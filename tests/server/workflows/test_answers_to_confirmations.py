"""Answers to a confirmation: approve, reject and edit."""

from typing import Any

from tests.agents import PAY, Till, model_of, payer
from tests.server.conftest import Serve
from tests.steps import (
    approve_and_finish,
    reject_and_finish,
    start_and_get_call,
    start_and_wait,
    tool_responses,
    wait_for_calls,
    wait_for_responses,
)
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

REJECTED = "This tool call is rejected."


async def test_an_approved_call_runs_once_and_is_recorded_in_adks_shapes(serve: Serve) -> None:
    """Call, request, confirmation, response and text are recorded as ADK's events, with the engine's IDs."""
    till = Till()
    agent = payer(till.pay, PAY, says("Paid."))
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay 5", id="approved-call"), "fc-1")
        assert till.paid == []
        assert (await approve_and_finish(invocation, "fc-1")).text == "Paid."
        assert till.paid == [5]
        assert tool_responses(model_of(agent).requests[1]) == [{"paid": 5}]
        events = [event async for event in invocation.events()]
        called = {"id": "fc-1", "name": "pay", "args": {"amount": 5}}
        hint = (
            "Please approve or reject the tool call pay() by responding with a FunctionResponse with an expected "
            "ToolConfirmation payload."
        )
        assert [(event.author, event.content) for event in events] == [
            ("user", {"role": "user", "parts": [{"text": "pay 5"}]}),
            ("payer", {"role": "model", "parts": [{"functionCall": called}]}),
            (
                "payer",
                {
                    "role": "model",
                    "parts": [
                        {
                            "functionCall": {
                                "id": "fc-1-confirmation",
                                "name": "adk_request_confirmation",
                                "args": {
                                    "originalFunctionCall": called,
                                    "toolConfirmation": {"hint": hint, "confirmed": False},
                                },
                            }
                        }
                    ],
                },
            ),
            (
                "user",
                {
                    "role": "user",
                    "parts": [
                        {
                            "functionResponse": {
                                "id": "fc-1-confirmation",
                                "name": "adk_request_confirmation",
                                "response": {"confirmed": True},
                            }
                        }
                    ],
                },
            ),
            (
                "payer",
                {
                    "role": "user",
                    "parts": [{"functionResponse": {"id": "fc-1", "name": "pay", "response": {"paid": 5}}}],
                },
            ),
            ("payer", {"role": "model", "parts": [{"text": "Paid."}]}),
        ]
        assert [event.long_running_tool_ids for event in events[1:3]] == [(), ("fc-1-confirmation",)]
        assert [event.id for event in events[:2]] == ["approved-call/e1", "approved-call/e2"]


async def test_the_response_of_an_approval_is_the_payload_of_the_confirmation(serve: Serve) -> None:
    """`tool_context.tool_confirmation` has the hint, the decision and the approver's response."""
    confirmations: list[Any] = []

    def pay(amount: int, tool_context: ToolContext) -> str:
        confirmations.append(tool_context.tool_confirmation)
        return "ok"

    model = ScriptedModel(calls(("pay", {"amount": 5})), says("Paid."))
    tool = FunctionTool(pay, require_confirmation=True, hint="Pay this?")
    async with serve(Agent(name="payer", model=model, tools=[tool])) as env:
        invocation = await env.client.start("payer", "pay 5")
        assert (await wait_for_calls(invocation, "fc-1"))[0].hint == "Pay this?"
        await approve_and_finish(invocation, "fc-1", response={"account": 7})
        assert [(c.hint, c.confirmed, c.payload) for c in confirmations] == [("Pay this?", True, {"account": 7})]


async def test_confirmations_of_one_reply_may_be_answered_in_any_order(serve: Serve) -> None:
    """The model receives the batch once, in call order, after every call has a response."""
    till = Till()
    agent = payer(till.pay, calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), says("Done."))
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay twice"), "fc-1", "fc-2")
        await invocation.approve("fc-2")
        await wait_for_calls(invocation, "fc-1")
        assert len(model_of(agent).requests) == 1
        assert (await reject_and_finish(invocation, "fc-1")).text == "Done."
        assert till.paid == [2]
        assert tool_responses(model_of(agent).requests[1]) == [{"error": REJECTED}, {"paid": 2}]
        assert len(model_of(agent).requests) == 2


async def test_only_calls_that_match_the_predicate_wait(serve: Serve) -> None:
    """`require_confirmation` may be a function of the arguments."""
    till = Till()
    model = ScriptedModel(calls(("pay", {"amount": 5}), ("pay", {"amount": 500})), says("Done."))
    tool = FunctionTool(till.pay, require_confirmation=lambda amount: amount > 100)
    async with serve(Agent(name="payer", model=model, tools=[tool])) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay twice"), "fc-2")
        await wait_for_responses(invocation, "fc-1")
        assert till.paid == [5]
        await approve_and_finish(invocation, "fc-2")
        assert till.paid == [5, 500]


async def test_a_pending_call_is_described_in_the_memo(serve: Serve) -> None:
    """An approver sees the call, its arguments and a digest without a running worker."""
    async with serve(payer(Till().pay)) as env:
        invocation, call = await start_and_get_call(
            env.client.start("payer", "pay 5", id="described", user_id="ann"), "fc-1"
        )
        assert (call.function_call_id, call.invocation_id, call.agent, call.tool, call.args, call.kind) == (
            "fc-1",
            "described",
            "payer",
            "pay",
            {"amount": 5},
            "confirmation",
        )
        assert call.user_id == "ann"
        assert len(call.digest) == 32
        assert round(call.deadline - call.requested_at) == 30 * 24 * 3600
        await approve_and_finish(invocation, "fc-1", digest=call.digest)
