"""The last check before a tool runs compares the call with its approval."""

from typing import Any

import pytest

from waystation.activities.answer_verification import bind_approval, find_refusal
from waystation.agents import ApprovalRule
from waystation.core.approval import ApprovalPolicy, call_digest
from waystation.core.contract import Call, Confirmation, EventActions, ToolCallInput, ToolConfirmation, ToolOutcome
from waystation.core.log import CallState
from waystation.core.payload import JsonObject
from waystation.tools.approval import parameters_digest
from waystation.tools.base_tool import BaseTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

POLICY = ApprovalPolicy(approvers=("role:finance",))


def pay(amount: int) -> None:
    """Pay."""


def pay_with_fee(amount: int, fee: int = 0) -> None:
    """Pay."""


pay_with_fee.__name__ = "pay"
TOOL, CHANGED = FunctionTool(pay), FunctionTool(pay_with_fee)


def approved(approved_args: JsonObject, **about: Any) -> tuple[CallState, ToolCallInput]:
    """Return an approved call and the input of its activity."""
    declared = parameters_digest(TOOL)
    call = Call(id="fc-1", confirmation=Confirmation(), declared=declared, approval=POLICY)
    state = CallState(
        call, name="pay", args=approved_args, agent="payer", reply=1, turn=0, gate="passed", asked="confirmation"
    )
    params = {"agent": "payer", "tool": "pay", "args": approved_args, "declared": declared, "policy": POLICY, **about}
    digest = call_digest(params.pop("agent"), params.pop("tool"), params.pop("args"), **params)
    return state, ToolCallInput(function_call_id="fc-1", at=0, new=(), digest=digest)


async def refused(
    args: JsonObject, *, by: BaseTool = TOOL, approved_args: JsonObject | None = None, about: JsonObject | None = None
) -> JsonObject | None:
    """Return the response for an approved call that is to run with these arguments."""
    call, params = approved({"amount": 5} if approved_args is None else approved_args, **(about or {}))
    outcome = await find_refusal(call, params, by, args, ToolContext())
    if outcome is None:
        return None
    assert outcome.error_type == "DigestMismatch"
    return outcome.response


async def test_an_approved_call_runs() -> None:
    """A call with the approved arguments runs, whatever the order of their keys."""
    assert await refused({"amount": 5}) is None
    assert await refused({"b": 1, "a": 2}, approved_args={"a": 2, "b": 1}) is None


@pytest.mark.parametrize(
    ("recorded", "now", "runs"),
    [
        ("declared", "declared", True),
        ("toolset:bank", "toolset:bank", True),
        (None, "toolset:bank", True),
        ("declared", "toolset:bank", False),
        ("toolset:bank", "toolset:bank#2", False),
        ("toolset:bank", "declared", False),
    ],
)
async def test_a_call_runs_only_on_the_tool_of_its_origin(recorded: str | None, now: str, runs: bool) -> None:
    """A call does not run on a tool of another origin with the same name.

    Earlier versions recorded no origin, and their calls keep their digest.
    """
    call, tool_input = approved({"amount": 5}, origin=recorded)
    call.call = call.call.model_copy(update={"tool_origin": recorded})
    for digest in (tool_input.digest, None):
        params = tool_input.model_copy(update={"digest": digest})
        outcome = await find_refusal(call, params, TOOL, {"amount": 5}, ToolContext(), origin=now)
        assert (outcome is None) == runs
        if outcome is not None and outcome.response is not None:
            assert outcome.error_type == "DigestMismatch"
            assert f"({recorded}) than the tool that now has this name ({now})" in outcome.response["error"]


@pytest.mark.parametrize(
    "args",
    [{"amount": 6}, {"amount": "5"}, {"amount": 5.5}, {"amount": True}, {}, {"amount": 5, "to": "me"}, {"Amount": 5}],
)
async def test_other_arguments_do_not_run(args: JsonObject) -> None:
    """Arguments with another value or type, or with a key more or less, do not run."""
    response = await refused(args)
    assert response is not None
    assert response["error_type"] == "DigestMismatch"
    assert "changed the arguments after they were approved" in response["error"]


async def test_arguments_that_have_no_json_form_do_not_run() -> None:
    """Arguments without a JSON form, which a callback may set, do not run."""
    response = await refused({"amount": object()})
    assert response is not None
    assert "changed the arguments after they were approved" in response["error"]


async def test_a_tool_with_other_parameters_does_not_run() -> None:
    """A call does not run if a deployment changed the parameters of the tool, and the response names this cause."""
    response = await refused({"amount": 5}, by=CHANGED)
    assert response is not None
    assert "its parameters changed after approval was requested" in response["error"]


@pytest.mark.parametrize(
    "about",
    [
        {"agent": "other"},
        {"tool": "refund"},
        {"args": {"amount": 6}},
        {"declared": parameters_digest(CHANGED)},
        {"policy": None},
        {"policy": POLICY.model_copy(update={"quorum": 2})},
    ],
)
async def test_a_digest_of_anything_else_does_not_run(about: JsonObject) -> None:
    """The digest binds agent, tool, arguments, parameters and policy."""
    assert await refused({"amount": 5}, about=about) is not None


def call_without_approval(args: JsonObject) -> tuple[CallState, ToolCallInput]:
    """Return a call that needed no approval."""
    state = CallState(Call(id="fc-1"), name="pay", args=args, agent="payer", reply=1, turn=0, gate="none")
    return state, ToolCallInput(function_call_id="fc-1", at=0, new=())


async def test_a_callback_cannot_take_a_call_past_a_rule() -> None:
    """A rule is evaluated again if a callback changed the arguments, so no callback can bypass it."""
    rules = [ApprovalRule(POLICY, over={"amount": 100})]
    call, params = call_without_approval({"amount": 5})
    response = await find_refusal(call, params, TOOL, {"amount": 500}, ToolContext(), rules)
    assert response is not None
    assert (response.error_type, "callback changed its arguments" in str(response.response)) == ("ApprovalNeeded", True)
    assert await find_refusal(call, params, TOOL, {"amount": 50}, ToolContext(), rules) is None


async def test_an_unchanged_call_is_evaluated_once() -> None:
    """A predicate is evaluated once if no callback changed the arguments."""
    amounts: list[int] = []
    rules = [ApprovalRule(POLICY, when=lambda amount: amounts.append(amount))]
    assert await find_refusal(*call_without_approval({"amount": 5}), TOOL, {"amount": 5}, ToolContext(), rules) is None
    assert amounts == []


def request_confirmation(call_id: str) -> ToolOutcome:
    actions = EventActions(requested_tool_confirmations={call_id: ToolConfirmation()})
    return ToolOutcome(function_call_id="fc-1", actions=actions)


def test_a_tool_that_requests_a_confirmation_is_bound_too() -> None:
    """A confirmation from inside a tool is bound to the policy, the parameters and the changed arguments."""
    call, _ = call_without_approval({"amount": 5})
    tool = FunctionTool(pay, approval=POLICY, require_confirmation=lambda: False)
    outcome = bind_approval(call, tool, {"amount": 5}, request_confirmation("fc-1"))
    assert (outcome.approval, outcome.declared, outcome.args) == (POLICY, parameters_digest(TOOL), None)
    assert bind_approval(call, tool, {"amount": 6}, request_confirmation("fc-1")).args == {"amount": 6}


def test_a_tool_without_a_request_records_no_binding() -> None:
    """A tool without a confirmation for its own call records no binding."""
    call, _ = call_without_approval({"amount": 5})
    for outcome in (ToolOutcome(function_call_id="fc-1"), request_confirmation("fc-2")):
        assert bind_approval(call, FunctionTool(pay, approval=POLICY), {"amount": 6}, outcome) == outcome
