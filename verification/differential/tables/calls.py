"""Tools of every kind, the calls of models, and the exceptions of tools. Section 1 of the semantics page."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from verification.differential.scenario import Scenario, alone, calls, shows
from waystation.tools import FunctionTool, ToolContext


def add(a: int, b: int = 2) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


async def add_later(a: int, b: int = 2) -> dict[str, int]:
    """Add two numbers, asynchronously."""
    return {"sum": a + b}


def wrapped(a: int) -> Any:
    """Return an awaitable."""
    return add_later(a)


def undocumented(a: int) -> int:
    return a


def nothing_given() -> str:
    """Take nothing."""
    return "nothing"


def rest(a: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Take more than it says."""
    return {"a": a, "args": list(args), "kwargs": kwargs}


def keyword_only(*, a: int, b: str = "b") -> str:
    """Take keywords."""
    return f"{a}{b}"


def positional_only(a: int, b: int = 3, /) -> int:
    """Take positions."""
    return a * b


def mutating(items: list[int]) -> list[int]:
    """Change what is given."""
    items.append(9)
    return items


def named_differently(a: int, where: ToolContext) -> dict[str, Any]:
    """Take the context under a name of its own."""
    return {"a": a, "agent": where.agent_name, "user": where.user_id}


def by_name(a: int, tool_context) -> str:  # type: ignore[no-untyped-def]  # ADK goes by the name too
    """Take the context by the name of the parameter."""
    return f"{a} {tool_context.agent_name}"


def optional_context(a: int, where: ToolContext | None = None) -> bool:
    """Take the context if there is one."""
    return where is not None


def documented(city: str, days: int = 3) -> str:
    """Forecast the weather.

    Args:
        city: Where.
        days: For how long.

    Returns:
        The forecast.
    """
    return f"{city} {days}"


class Calculator:
    """Calculate."""

    def times(self, a: int, b: int = 2) -> int:
        """Multiply."""
        return a * b

    @classmethod
    def kind(cls, a: int) -> str:
        """Name the class."""
        return f"{cls.__name__} {a}"

    @staticmethod
    def negative(a: int) -> int:
        """Negate."""
        return -a


class Doubling:
    """Double a number."""

    def __call__(self, a: int) -> int:
        return 2 * a


class Tripling:
    async def __call__(self, a: int) -> int:
        """Triple a number."""
        return 3 * a


def failing(a: int) -> str:
    """Fail."""
    raise ValueError(f"no {a}")


async def failing_later(a: int) -> str:
    """Fail after a while."""
    await asyncio.sleep(0.2)
    raise ValueError(f"no {a}")


def _raising(function: Callable[..., Any]) -> Any:
    tool = FunctionTool(function)
    vars(tool)["on_error"] = "raise"  # ADK raises in any case
    return tool


def failing_silently(a: int) -> str:
    """Fail without a word."""
    raise KeyError


KINDS: dict[str, tuple[Callable[[], Any], str, dict[str, Any]]] = {
    "sync": (lambda: add, "add", {"a": 1}),
    "async": (lambda: add_later, "add_later", {"a": 1, "b": 5}),
    "wrapper_of_async": (lambda: wrapped, "wrapped", {"a": 1}),
    "function_tool": (lambda: FunctionTool(add), "add", {"a": 1}),
    "function_tool_by_keyword": (lambda: FunctionTool(func=add), "add", {"a": 1}),
    "undocumented": (lambda: undocumented, "undocumented", {"a": 1}),
    "no_parameters": (lambda: nothing_given, "nothing_given", {}),
    "keyword_only": (lambda: keyword_only, "keyword_only", {"a": 1}),
    "method": (lambda: Calculator().times, "times", {"a": 4}),
    "class_method": (lambda: Calculator.kind, "kind", {"a": 4}),
    "static_method": (lambda: Calculator.negative, "negative", {"a": 4}),
    "callable_object": (lambda: Doubling(), "Doubling", {"a": 4}),
    "async_callable_object": (lambda: Tripling(), "Tripling", {"a": 4}),
    "partial_positional": (lambda: functools.partial(add, 7), "add", {}),
    "positional_only": (lambda: positional_only, "positional_only", {"a": 4}),
    "context_by_annotation": (lambda: named_differently, "named_differently", {"a": 1}),
    "context_by_name": (lambda: by_name, "by_name", {"a": 1}),
    "context_optional": (lambda: optional_context, "optional_context", {"a": 1}),
    "context_given_by_the_model": (lambda: named_differently, "named_differently", {"a": 1, "where": "here"}),
    "arguments_changed_in_place": (lambda: mutating, "mutating", {"items": [1]}),
    "argument_missing": (lambda: add, "add", {"b": 1}),
    "arguments_missing": (lambda: keyword_only, "keyword_only", {}),
    "argument_unknown": (lambda: add, "add", {"a": 1, "zz": [1]}),
    "argument_unknown_with_kwargs": (lambda: rest, "rest", {"a": 1, "zz": 3}),
}
"""A tool, its name, and the arguments with which the model calls it."""


def _kind(name: str, make: Callable[[], Any], tool: str, args: dict[str, Any], **fields: Any) -> Scenario:
    return alone(f"tool_{name}", calls((tool, args)), "done", tools=lambda: [make()], **fields)


def _nothing() -> dict[str, Any]:
    return {"role": "model", "parts": [{"functionCall": {"name": "nothing_given"}}]}


def _recorded(tool: str) -> dict[str, Any]:
    response = {"error": "no 1", "error_type": "ValueError"}
    told = {"message": f"The tool {tool!r} raised.", "tool": tool, "response": response}
    return shows(failures_are_recorded=told)


def _with_ids(*wanted: str) -> dict[str, Any]:
    return {"role": "model", "parts": [{"functionCall": {"name": "add", "args": {"a": 1}, "id": id}} for id in wanted]}


TABLE: list[Scenario] = [
    *(_kind(name, *row) for name, row in KINDS.items()),
    *(
        _kind(
            f"partial_keyword{name}",
            lambda: functools.partial(add, b=7),
            "add",
            args,
            deviations=shows(bound_arguments_are_hidden={"add": {"sum": 8}}),
        )
        for name, args in (("", {"a": 1}), ("_overridden", {"a": 1, "b": 0}))
    ),
    alone("text_only", "hello"),
    alone("text_with_a_call", calls(("add", {"a": 1}), text="I add."), "done", tools=lambda: [add]),
    alone("three_steps", *[calls(("add", {"a": n})) for n in range(3)], "done", tools=lambda: [add]),
    alone("two_calls", calls(("add", {"a": 1}), ("add_later", {"a": 2})), "done", tools=lambda: [add, add_later]),
    alone("call_without_arguments", _nothing(), "done", tools=lambda: [nothing_given]),
    alone("call_with_an_id_of_the_model", _with_ids("m-1"), "done", tools=lambda: [add]),
    alone("calls_with_ids_of_the_model", _with_ids("m-1", "m-2"), "done", tools=lambda: [add]),
    alone("unknown_tool", calls(("nope", {"a": 1})), "done", tools=lambda: [add, add_later]),
    alone("unknown_tool_of_none", calls(("nope", {})), "done"),
    alone("unknown_tool_beside_a_known", calls(("nope", {}), ("add", {"a": 1})), "done", tools=lambda: [add]),
    alone(
        "parameters_described",
        calls(("documented", {"city": "Bonn"})),
        "done",
        tools=lambda: [documented],
        deviations=shows(parameter_descriptions={"documented": {"city": "Where.", "days": "For how long."}}),
    ),
    alone(
        "tool_raises",
        calls(("failing", {"a": 1})),
        "done",
        tools=lambda: [failing],
        deviations=shows("tool-errors-are-told"),
    ),
    alone(
        "tool_raises_silently",
        calls(("failing_silently", {"a": 1})),
        "done",
        tools=lambda: [failing_silently],
        deviations=shows("tool-errors-are-told"),
    ),
    alone(
        "tool_raises_out_of_the_invocation",
        calls(("failing", {"a": 1})),
        tools=lambda: [_raising(failing)],
        deviations=_recorded("failing"),
    ),
    alone(
        "tool_raises_out_of_the_invocation_beside_another",
        calls(("add", {"a": 1}), ("failing_later", {"a": 1})),
        tools=lambda: [_raising(failing_later), add],
        deviations=_recorded("failing_later"),
    ),
    alone(
        "budget_used_up",
        *[calls(("add", {"a": n})) for n in range(4)],
        tools=lambda: [add],
        max_llm_calls=2,
        deviations=shows("budget-stops"),
    ),
    alone("thoughts", {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "yes"}]}),
    alone(
        "thought_signature",
        {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "add", "args": {"a": 1}}, "thoughtSignature": "c2lnbmF0dXJl"},
            ],
        },
        "done",
        tools=lambda: [add],
    ),
]


def yielding(a: int) -> Iterator[int]:
    """Yield a number."""
    yield a + 1


async def yielding_later(a: int) -> AsyncIterator[dict[str, int]]:
    """Yield a dictionary."""
    yield {"a": a}


def yielding_nothing(a: int) -> Iterator[int]:
    """Yield nothing."""
    yield from ()


NODE = shows("generators-are-no-nodes")

GENERATORS: list[Scenario] = [
    _kind("generator", lambda: yielding, "yielding", {"a": 1}, deviations=NODE),
    _kind("async_generator", lambda: yielding_later, "yielding_later", {"a": 1}, deviations=NODE),
    _kind("empty_generator", lambda: yielding_nothing, "yielding_nothing", {"a": 1}),
]
