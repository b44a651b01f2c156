"""Calls that a person has to confirm. Section 2 of the semantics page."""

from collections.abc import Callable
from typing import Any

from verification.differential.scenario import Json, Scenario, alone, approves, calls, rejects, shows
from waystation.tools import FunctionTool, ToolContext


def pay(amount: int, tool_context: ToolContext) -> Json:
    """Pay."""
    confirmation = tool_context.tool_confirmation
    tool_context.state["paid"] = amount
    return {
        "paid": amount,
        "confirmed": confirmation.confirmed if confirmation else None,
        "payload": confirmation.payload if confirmation else None,
    }


def look() -> str:
    """Look around."""
    return "nothing to see"


def is_large(amount: int, tool_context: ToolContext) -> bool:
    """Whether somebody has to look at it."""
    return amount > 100


async def is_large_for_this_user(amount: int, tool_context: ToolContext) -> bool:
    """Whether somebody has to look at it, asynchronously."""
    return amount > 100 and tool_context.state.get("careful", False)


def _gated(require: Any = True) -> Callable[[], list[Any]]:
    return lambda: [FunctionTool(pay, require_confirmation=require), look]


ONE, TWO = calls(("pay", {"amount": 500})), calls(("pay", {"amount": 500}), ("pay", {"amount": 700}))
GATED = shows("no-placeholder")

TABLE: list[Scenario] = [
    alone("confirmation_left_waiting", ONE, tools=_gated(), deviations=GATED),
    alone("confirmation_approved", ONE, "done", tools=_gated(), answers=[approves()], deviations=GATED),
    alone(
        "confirmation_with_payload",
        ONE,
        "done",
        tools=_gated(),
        answers=[approves({"limit": 1})],
        deviations=GATED | shows(payloads_are_told={"limit": 1}),
    ),
    alone("confirmation_rejected", ONE, "done", tools=_gated(), answers=[rejects()], deviations=GATED),
    alone(
        "confirmation_after_text",
        calls(("pay", {"amount": 1}), text="I pay."),
        "done",
        tools=_gated(),
        answers=[approves()],
        deviations=GATED,
    ),
    alone("confirmation_by_predicate", ONE, "done", tools=_gated(is_large), answers=[approves()], deviations=GATED),
    alone("confirmation_not_needed", calls(("pay", {"amount": 5})), "done", tools=_gated(is_large)),
    alone(
        "confirmation_by_async_predicate",
        ONE,
        "done",
        tools=_gated(is_large_for_this_user),
        state={"careful": True},
        answers=[approves()],
        deviations=GATED,
    ),
    alone("confirmation_not_needed_for_this_state", ONE, "done", tools=_gated(is_large_for_this_user)),
    alone(
        "confirmation_before_arguments_are_missed",
        calls(("pay", {})),
        "done",
        tools=_gated(),
        answers=[approves()],
        deviations=GATED,
    ),
    alone(
        "confirmation_of_two_together",
        TWO,
        "done",
        tools=_gated(),
        answers=[(approves(), approves(call=1))],
        deviations=shows("no-placeholder", "each-answer-is-an-event"),
    ),
    alone(
        "confirmation_of_one_of_two",
        TWO,
        "done",
        tools=_gated(),
        answers=[(approves(), rejects(call=1))],
        deviations=shows("no-placeholder", "each-answer-is-an-event"),
    ),
    alone(
        "confirmation_beside_a_free_call",
        calls(("look", {}), ("pay", {"amount": 500})),
        "done",
        tools=_gated(),
        answers=[approves()],
        deviations=GATED,
    ),
    alone(
        "confirmation_rejected_beside_a_free_call",
        calls(("pay", {"amount": 500}), ("look", {})),
        "done",
        tools=_gated(),
        answers=[rejects()],
        deviations=GATED,
    ),
    alone(
        "confirmation_twice_in_a_row",
        ONE,
        calls(("pay", {"amount": 7})),
        "done",
        tools=_gated(),
        answers=[approves(), rejects()],
        deviations=GATED,
    ),
    alone(
        "confirmation_rejected_then_tried_again",
        ONE,
        calls(("pay", {"amount": 5})),
        "done",
        tools=_gated(is_large),
        answers=[rejects()],
        deviations=GATED,
    ),
]


def ask_first(amount: int, tool_context: ToolContext) -> Json:
    """Pay, after asking."""
    if tool_context.tool_confirmation is None:
        tool_context.request_confirmation(hint="Really?", payload={"limit": 0})
        return {"status": "waiting"}
    return {
        "confirmed": tool_context.tool_confirmation.confirmed,
        "payload": tool_context.tool_confirmation.payload,
        "hint": tool_context.tool_confirmation.hint,
    }


def ask_and_stop(amount: int, tool_context: ToolContext) -> Json:
    """Pay, after asking, without an interim response."""
    if tool_context.tool_confirmation is None:
        tool_context.request_confirmation(hint="Really?")
        tool_context.actions.skip_summarization = True
        tool_context.state["asked"] = amount
        return {"status": "waiting"}
    return {"confirmed": tool_context.tool_confirmation.confirmed}


def _dynamic(name: str, tool: Callable[..., Any], *replies: str, **fields: Any) -> Scenario:
    reply = calls((tool.__name__, {"amount": 5}))
    return alone(f"confirmation_asked_by_the_tool_{name}", reply, *replies, tools=lambda: [tool, look], **fields)


ASKED = {"payload": {"limit": 0}, "hint": "Really?"}
AGAIN = shows(answers_keep_what_was_asked=ASKED)
HINTED = shows(answers_keep_what_was_asked={"hint": "Really?"})

DYNAMIC: list[Scenario] = [
    _dynamic("left_waiting", ask_first, "waiting"),
    _dynamic("approved", ask_first, "waiting", "done", answers=[approves()], deviations=AGAIN),
    _dynamic(
        "with_payload",
        ask_first,
        "waiting",
        "done",
        answers=[approves({"limit": 5})],
        deviations=HINTED | shows(payloads_are_told={"limit": 5}),
    ),
    _dynamic("rejected", ask_first, "waiting", "done", answers=[rejects()], deviations=AGAIN),
    _dynamic("in_silence", ask_and_stop, "done", answers=[approves()]),
]
