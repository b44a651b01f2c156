"""`user:`, `app:` and `temp:` state over several sessions. Sections 6.2 and 9.1 of the semantics page."""

from typing import Any

from verification.differential.scenario import (
    Cast,
    Elsewhere,
    Json,
    Refusal,
    Reply,
    Scenario,
    alone,
    approves,
    calls,
    responds,
    shows,
)
from verification.differential.tables.long_running import NOTED
from waystation.tools import FunctionTool, LongRunningFunctionTool, ToolContext

KEYS = ("a", "user:a", "app:a", "temp:a")


def _tools() -> list[Any]:
    def write(key: str, value: Any, tool_context: ToolContext) -> str:
        """Write a value."""
        tool_context.state[key] = value
        return "written"

    def read(tool_context: ToolContext) -> Json:
        """Read all values."""
        return {key: tool_context.state.get(key, "-") for key in KEYS}

    def amend(tool_context: ToolContext) -> str:
        """Change a value in place."""
        tool_context.state["user:a"].append(2)
        return str(tool_context.state["user:a"])

    def count(tool_context: ToolContext) -> int:
        """Count one more."""
        tool_context.state["app:a"] = tool_context.state.get("app:a", 0) + 1
        return int(tool_context.state["app:a"])

    def ask(tool_context: ToolContext) -> Json:
        """Ask somebody."""
        tool_context.state["user:a"] = "asked"
        return {"status": "pending"}

    def pay(amount: int) -> Json:
        """Pay an amount."""
        return {"paid": amount}

    return [write, read, amend, count, LongRunningFunctionTool(ask), FunctionTool(pay, require_confirmation=True)]


def _scope(name: str, *replies: Reply, **fields: Any) -> Scenario:
    fields["deviations"] = {"long-running-note": NOTED, **fields.get("deviations", {})}
    return alone(f"scopes_{name}", *replies, tools=_tools, **fields)


def _write(*values: tuple[str, Any]) -> Json:
    return calls(*(("write", {"key": key, "value": value}) for key, value in values))


def _in(session: str, text: str = "go", **fields: Any) -> Elsewhere:
    return Elsewhere(text=text, session=session, **fields)


def _calling(cast: Cast) -> Any:
    """Return an agent whose tool is an agent that writes."""
    from waystation.agents import LlmAgent
    from waystation.tools import AgentTool

    writer = LlmAgent(name="writer", description="Writes.", model=cast.model("writer"), tools=_tools())
    return LlmAgent(name=cast.name, model=cast.model("main"), tools=[AgentTool(writer), *_tools()])


READ, COUNT, AMEND = calls(("read", {})), calls(("count", {})), calls(("amend", {}))
ASK, PAY = calls(("ask", {})), calls(("pay", {"amount": 5}))
EVERYWHERE = _write(("a", 1), ("user:a", 2), ("app:a", 3))

TABLE: list[Scenario] = [
    _scope("of_one_user", EVERYWHERE, "written", READ, "read", READ, "read", answers=["again", _in("two")]),
    _scope("of_another_user", EVERYWHERE, "written", READ, "read", answers=[_in("two", user="bob")]),
    _scope(
        "of_another_user_in_a_session_of_that_name", EVERYWHERE, "ok", READ, "ok", answers=[_in("session", user="bob")]
    ),
    _scope(
        "temporary",
        _write(("temp:a", 1)),
        "written",
        READ,
        "read",
        READ,
        "read",
        answers=["again", _in("two")],
        deviations=shows(temporary_state_in_events={2: {"temp:a": 1}}),
    ),
    _scope(
        "overwritten_elsewhere",
        _write(("user:a", 1)),
        "one",
        _write(("user:a", 2)),
        "two",
        READ,
        "read",
        answers=[_in("two"), _in("session", "and now?")],
    ),
    _scope("without_a_value", _write(("user:a", None), ("app:a", [])), "ok", READ, "read", answers=[_in("two")]),
    _scope(
        "changed_in_place", _write(("user:a", [1])), "ok", AMEND, "ok", READ, "ok", answers=[_in("two"), _in("three")]
    ),
    _scope("counted", COUNT, "1", COUNT, "2", COUNT, "3", answers=["more", _in("two", user="bob")]),
    _scope(
        "given_to_a_session",
        READ,
        "read",
        READ,
        "read",
        READ,
        "read",
        state={"a": 1, "user:a": 2, "app:a": 3},
        answers=[_in("two", state={"a": 4, "user:a": 5}), _in("session", "and now?")],
    ),
    _scope(
        "of_an_instruction",
        _write(("user:a", "Ada"), ("app:a", "open")),
        "ok",
        "hello",
        "hello",
        agent={"instruction": "Serve {user:a?}; the shop is {app:a?}."},
        answers=[_in("two"), _in("three", user="bob")],
    ),
    _scope("of_an_output_key", "first", READ, "second", agent={"output_key": "user:a"}, answers=[_in("two")]),
    _scope(
        "of_a_failed_turn",
        _write(("user:a", 1)),
        Refusal("no"),
        READ,
        "read",
        answers=[_in("two")],
        deviations=shows("failures-of-models-are-named"),
    ),
    _scope("while_a_call_waits", ASK, "asked", READ, "read", "done", answers=[_in("two"), _in("session", "and now?")]),
    _scope(
        "answered_after_others_wrote",
        ASK,
        "asked",
        _write(("user:a", 2)),
        "ok",
        READ,
        "read",
        answers=[_in("two"), _in("session", ""), responds({"ok": True})],
        deviations=shows(scopes_are_read_once={"read": {"a": "-", "user:a": "asked", "app:a": "-", "temp:a": "-"}}),
    ),
    _scope(
        "confirmed_after_others_wrote",
        PAY,
        _write(("user:a", 2)),
        "ok",
        READ,
        "read",
        answers=[_in("two"), _in("session", ""), approves()],
        deviations=shows("no-placeholder", scopes_are_read_once={"read": dict.fromkeys(KEYS, "-")}),
    ),
    Scenario(
        name="scopes_of_a_called_agent",
        agent=_calling,
        script={
            "main": [calls(("writer", {"request": "go"})), "called", READ, "read"],
            "writer": [EVERYWHERE, "written"],
        },
        answers=[_in("two")],
        deviations={"long-running-note": NOTED},
    ),
]
