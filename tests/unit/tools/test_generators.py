"""Generators as tools: their only yielded value is the result."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel

from waystation.core.payload import JsonObject
from waystation.events import Event
from waystation.tools.function_tool import FunctionTool
from waystation.tools.outcome import create_outcome
from waystation.tools.tool_context import ToolContext


class Report(BaseModel):
    pages: int = 1


async def call(function: Callable[..., Any], args: JsonObject | None = None) -> Any:
    return await FunctionTool(function).run_async(args=args or {}, tool_context=ToolContext())


def one() -> Iterator[str]:
    yield "done"


async def one_asynchronously() -> AsyncIterator[str]:
    yield "done"


def none_before() -> Iterator[str | None]:
    yield None
    yield "done"


def returning() -> Any:
    yield "done"
    return "not this"


class Callable_:
    def __call__(self) -> Iterator[str]:
        yield "done"


@pytest.mark.parametrize("function", [one, one_asynchronously, none_before, returning, Callable_()])
async def test_the_only_yielded_value_is_the_result(function: Callable[..., Any]) -> None:
    """A yielded None is skipped, and the return value of the generator is ignored. Source: adk-semantics 1.8."""
    assert await call(function) == "done"


async def test_a_generator_that_yields_nothing_has_no_result() -> None:
    """The generator has the result None."""

    def nothing() -> Iterator[int]:
        yield from ()

    assert await call(nothing) is None


async def test_a_yielded_model_is_the_response_itself() -> None:
    """A returned model is under `result`; ADK converts a yielded one to a dictionary first."""

    def report() -> Iterator[Report]:
        yield Report()

    assert await call(report) == {"pages": 1}


async def test_media_may_be_yielded() -> None:
    """A yielded Part stays a Part, so that its data is separated from the response."""

    def draw() -> Iterator[types.Part]:
        yield types.Part.from_bytes(data=b"abc", mime_type="image/png")

    outcome = create_outcome(await call(draw), context=ToolContext(function_call_id="fc-1"))
    assert (outcome.response, len(outcome.parts)) == ({}, 1)


@pytest.mark.parametrize("first", ["a", 0, False])
async def test_a_second_value_is_a_mistake(first: object) -> None:
    """A second value raises ADK's error, and the generator is closed, so that it can clean up."""
    closed = []

    def two() -> Iterator[object]:
        try:
            yield first
            yield "b"
        finally:
            closed.append(True)

    async def two_asynchronously() -> AsyncIterator[object]:
        try:
            yield first
            yield "b"
        finally:
            closed.append(True)

    for function in (two, two_asynchronously):
        with pytest.raises(ValueError, match=r"^Output already set\. A node can produce at most one output\.$"):
            await call(function)
    assert closed == [True, True]


async def test_events_cannot_be_yielded() -> None:
    """Yielded events are refused, because a tool acts through its context, which records actions with the call."""

    def speak() -> Iterator[Any]:
        yield Event(author="speak")

    with pytest.raises(TypeError, match="cannot yield events"):
        await call(speak)


async def test_a_generator_has_arguments_and_context_like_any_function() -> None:
    """Arguments are converted, and the context is injected."""

    def count(n: int, tool_context: ToolContext) -> Iterator[object]:
        tool_context.state["n"] = n
        yield n

    context = ToolContext(function_call_id="fc-1")
    assert await FunctionTool(count).run_async(args={"n": "3"}, tool_context=context) == 3
    assert context.recorded_actions().state_delta == {"n": 3}
