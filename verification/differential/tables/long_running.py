"""Long-running calls, which are answered from outside. Section 3 of the semantics page."""

from collections.abc import Callable
from typing import Any

from verification.differential.scenario import Json, Scenario, alone, calls, reports, responds, shows
from waystation.tools import LongRunningFunctionTool, ToolContext

NOTED = {"ask": "Ask somebody.", "order": "Order something."}


def _asking(result: Any, state: Json | None = None) -> Callable[[], list[Any]]:
    def tools() -> list[Any]:
        def ask(purpose: str, tool_context: ToolContext) -> Any:
            """Ask somebody."""
            tool_context.state.update(state or {})
            return result

        async def order(what: str) -> Json:
            """Order something."""
            return {"status": "ordered", "what": what}

        def look() -> str:
            """Look around."""
            return "nothing to see"

        return [LongRunningFunctionTool(ask), LongRunningFunctionTool(func=order), look]

    return tools


def _skipping() -> list[Any]:
    def ask(purpose: str, tool_context: ToolContext) -> Json:
        """Ask somebody."""
        tool_context.actions.skip_summarization = True
        return {"status": "pending"}

    return [LongRunningFunctionTool(ask)]


def _undocumented() -> list[Any]:
    def ask(purpose: str) -> None:
        return None

    return [LongRunningFunctionTool(ask)]


ASK, ASK_TWICE = calls(("ask", {"purpose": "p"})), calls(("ask", {"purpose": "p"}), ("ask", {"purpose": "q"}))
PENDING, DONE = {"status": "pending", "ticket": 1}, {"status": "done"}


def _waiting(name: str, *replies: Any, result: Any = None, **fields: Any) -> Scenario:
    fields.setdefault("tools", _asking(result))
    fields["deviations"] = {"long-running-note": NOTED, **fields.get("deviations", {})}
    return alone(f"long_running_{name}", *replies, **fields)


TABLE: list[Scenario] = [
    _waiting("left_waiting", ASK),
    _waiting("silent", ASK, "done", answers=[responds(DONE)]),
    _waiting("interim", ASK, "it is pending", "done", result=PENDING, answers=[responds(DONE)]),
    _waiting("interim_text", ASK, "it is pending", "done", result="pending", answers=[responds(DONE)]),
    *(
        _waiting(f"falsy_{name}", ASK, "done", result=value, answers=[responds(DONE)])
        for name, value in {"dictionary": {}, "zero": 0, "text": "", "false": False, "list": []}.items()
    ),
    _waiting(
        "reports_then_answer",
        ASK,
        "it is pending",
        "half",
        "done",
        result=PENDING,
        answers=[reports({"percent": 50}), responds(DONE)],
    ),
    _waiting("reports_when_silent", ASK, "half", "done", answers=[reports({"percent": 50}), responds(DONE)]),
    _waiting(
        "three_reports",
        ASK,
        "10",
        "20",
        "30",
        "done",
        answers=[*(reports({"percent": n}) for n in (10, 20, 30)), responds(DONE)],
    ),
    _waiting(
        "state_of_a_silent_one",
        ASK,
        "done",
        tools=_asking(None, {"asked": 1}),
        answers=[responds(DONE)],
        deviations=shows(silent_actions={"stateDelta": {"asked": 1}}),
    ),
    _waiting(
        "state_of_one_that_speaks",
        ASK,
        "pending",
        "done",
        tools=_asking(PENDING, {"asked": 1}),
        answers=[responds(DONE)],
    ),
    _waiting("argument_missing", calls(("ask", {})), "done"),
    _waiting(
        "beside_a_quick_call",
        calls(("ask", {"purpose": "p"}), ("look", {})),
        "done",
        answers=[responds(DONE)],
        deviations=shows("one-rule-for-batches", responses_in_call_order=[DONE, {"result": "nothing to see"}]),
    ),
    _waiting(
        "interim_beside_a_quick_call",
        calls(("look", {}), ("ask", {"purpose": "p"})),
        "pending",
        "done",
        result=PENDING,
        answers=[responds(DONE)],
    ),
    _waiting(
        "two_silent_in_order",
        ASK_TWICE,
        "done",
        answers=[responds({"n": 1}), responds({"n": 2})],
        deviations=shows("one-rule-for-batches"),
    ),
    _waiting(
        "two_silent_second_first",
        ASK_TWICE,
        "done",
        answers=[responds({"n": 2}, call=1), responds({"n": 1})],
        deviations=shows("one-rule-for-batches", responses_in_call_order=[{"n": 1}, {"n": 2}]),
    ),
    _waiting(
        "two_interim",
        ASK_TWICE,
        "pending",
        "one",
        "both",
        result=PENDING,
        answers=[responds({"n": 1}), responds({"n": 2})],
    ),
    _waiting(
        "two_kinds",
        calls(("ask", {"purpose": "p"}), ("order", {"what": "x"})),
        "done",
        "delivered",
        answers=[responds({"n": 1}), responds({"n": 2})],
        deviations=shows(
            "one-rule-for-batches", responses_in_call_order=[{"n": 1}, {"n": 2}, {"status": "ordered", "what": "x"}]
        ),
    ),
    _waiting(
        "two_in_a_row",
        ASK,
        calls(("order", {"what": "x"})),
        "ordered",
        "done",
        answers=[responds(DONE), responds(DONE)],
    ),
    _waiting(
        "skipping_summary",
        ASK,
        "done",
        tools=_skipping,
        answers=[responds(DONE)],
        deviations={"long-running-note": {"ask": NOTED["ask"]}},
    ),
    _waiting(
        "undocumented",
        ASK,
        "done",
        tools=_undocumented,
        answers=[responds(DONE)],
        deviations={"long-running-note": {"ask": ""}},
    ),
]
