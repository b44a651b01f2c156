"""State, actions, and how a batch of calls is merged. Sections 6 to 8 of the semantics page."""

import asyncio
from collections.abc import Callable
from typing import Any

from verification.differential.scenario import Json, Scenario, alone, calls, shows
from waystation.tools import ToolContext

Act = Callable[[ToolContext], Any]


def _tool(name: str, act: Act) -> Any:
    def run(tool_context: ToolContext) -> Any:
        return act(tool_context)

    run.__name__, run.__doc__ = name, f"Run {name}."
    return run


def _acts(*acts: Act) -> Callable[[], list[Any]]:
    return lambda: [_tool(f"act{n}", act) for n, act in enumerate(acts)]


def _together(*acts: Act) -> tuple[Json, str]:
    return calls(*((f"act{n}", {}) for n in range(len(acts)))), "done"


def _in_turn(*acts: Act) -> tuple[Any, ...]:
    return (*(calls((f"act{n}", {})) for n in range(len(acts))), "done")


def _write(**values: Any) -> Act:
    def act(context: ToolContext) -> str:
        context.state.update(values)
        return "written"

    return act


def _scopes(context: ToolContext) -> list[Any]:
    state = context.state
    state["a"], state["user:b"], state["app:c"], state["temp:d"] = 1, 2, 3, 4
    return [state["a"], state["user:b"], state["app:c"], state["temp:d"]]


def _read(context: ToolContext) -> Json:
    return {key: context.state.get(key, "-") for key in ("a", "user:b", "app:c", "temp:d", "prefs", "list")}


def _whole(context: ToolContext) -> Json:
    return {"all": context.state.to_dict(), "has": "a" in context.state, "hasnt": "zz" in context.state}


def _nested(context: ToolContext) -> str:
    context.state["prefs"]["theme"] = "dark"
    context.state["list"].append(3)
    return "changed"


def _default(context: ToolContext) -> Any:
    context.state.setdefault("prefs", {})["theme"] = "dark"
    return context.state.setdefault("count", 5)


def _missing(context: ToolContext) -> str:
    try:
        return str(context.state["nowhere"])
    except KeyError:
        return "missing"


def _increment(context: ToolContext) -> int:
    context.state["count"] = context.state.get("count", 0) + 1
    return int(context.state["count"])


def _write_and_change(context: ToolContext) -> bool:
    items = [1]
    context.state["list"] = items
    items.append(2)
    return context.state.has_delta()


def _by_actions(context: ToolContext) -> str:
    context.actions.state_delta["a"] = 1
    return "written"


def _skip(context: ToolContext) -> int:
    context.actions.skip_summarization = True
    return 1


def _do_not_skip(context: ToolContext) -> int:
    context.actions.skip_summarization = False
    return 2


def _escalate(context: ToolContext) -> int:
    context.actions.escalate = True
    return 3


def _nothing(context: ToolContext) -> None:
    return None


def _about(context: ToolContext) -> Json:
    return {
        "agent": context.agent_name,
        "user": context.user_id,
        "message": context.user_content.parts[0].text,  # type: ignore[index, union-attr]  # there is one
        "confirmation": context.tool_confirmation,
        "call": context.function_call_id is not None,
    }


def _alone(name: str, *acts: Act, **fields: Any) -> Scenario:
    return alone(f"state_{name}", *_in_turn(*acts), tools=_acts(*acts), **fields)


def _batch(name: str, *acts: Act, **fields: Any) -> Scenario:
    return alone(f"batch_{name}", *_together(*acts), tools=_acts(*acts), **fields)


PREFS: Json = {"prefs": {"theme": "light", "size": 1}, "list": [1, 2]}


def _slow_first() -> list[Any]:
    async def slow(tool_context: ToolContext) -> str:
        """Take a while."""
        await asyncio.sleep(0.05)
        tool_context.state["k"] = "slow"
        return "slow"

    async def fast(tool_context: ToolContext) -> str:
        """Take no time."""
        tool_context.state["k"] = "fast"
        return "fast"

    return [slow, fast]


def _failing() -> list[Any]:
    def fail() -> None:
        """Fail."""
        raise ValueError("no")

    def write(tool_context: ToolContext) -> str:
        """Write."""
        tool_context.state["a"] = 1
        return "written"

    return [fail, write]


def _write_and_fail() -> list[Any]:
    def fail(tool_context: ToolContext) -> None:
        """Write and fail."""
        tool_context.state["a"] = 1
        raise ValueError("no")

    return [fail]


TABLE: list[Scenario] = [
    _alone("written", _write(a=1, b="x", c=None, d=[1, {"e": 2}])),
    _alone("of_all_scopes", _scopes, _read, deviations=shows(temporary_state_in_events={2: {"temp:d": 4}})),
    _alone("read_at_first", _read, state={"a": 1, "user:b": 2, "app:c": 3}),
    _alone("whole", _write(b=2), _whole, state={"a": 1}),
    _alone("changed_in_place", _nested, _read, state=PREFS),
    _alone("defaulted", _default, _default),
    _alone("missing", _missing),
    _alone("counted", _increment, _increment, _increment),
    _alone("overwritten", _write(a=1), _write(a=2), _write(a=None)),
    _alone("written_then_changed", _write_and_change),
    _alone("read_only", _read, state={"a": 1}),
    _alone("by_actions", _by_actions, _read),
    _alone("unchanged_by_the_same_value", _write(a=1), state={"a": 1}),
    _alone("context", _about),
    _batch("of_writes_to_different_keys", _write(a=1), _write(b=2)),
    _batch("of_writes_to_one_key", _write(a=1), _write(a=2)),
    _batch("of_dictionaries", _write(a={"x": 1, "deep": {"p": 1}}), _write(a={"y": 2, "deep": {"q": 2}})),
    _batch("of_lists", _write(a=[1]), _write(a=[2])),
    _batch("of_dictionary_and_number", _write(a={"x": 1}), _write(a=2)),
    _batch("skipping", _skip),
    _batch("skipping_then_not", _skip, _do_not_skip),
    _batch("skipping_then_silent", _skip, _nothing),
    _batch("not_skipping_then_skipping", _do_not_skip, _skip),
    _batch("escalating", _escalate),
    _batch("escalating_and_skipping", _escalate, _skip, _write(a=1)),
    _batch("of_nothing", _nothing, _nothing),
    alone("batch_with_the_slow_one_first", calls(("slow", {}), ("fast", {})), "done", tools=_slow_first),
    alone("batch_with_the_same_tool_thrice", calls(*[("fast", {})] * 3), "done", tools=_slow_first),
    alone(
        "batch_with_a_failing_call",
        calls(("fail", {}), ("write", {})),
        "done",
        tools=_failing,
        deviations=shows("tool-errors-are-told"),
    ),
    alone(
        "state_of_a_failing_call",
        calls(("fail", {})),
        "done",
        tools=_write_and_fail,
        deviations=shows("tool-errors-are-told"),
    ),
]


def _session(context: ToolContext) -> Json:
    session = context.session
    return {
        "user": session.user_id,
        "app": session.app_name,
        "events": len(session.events),
        "a": session.state.get("a"),
    }


CONTEXT: list[Scenario] = [
    _alone("of_the_session", _session, state={"a": 1}),
    _alone("of_the_aborted", lambda context: context.is_aborted),
]
