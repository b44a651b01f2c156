"""Calling a function of any kind: sync ones in a thread, generators to their end.

Author code ends in a value or an ordinary exception; what would harm the event loop is contained here.
"""

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any

from pydantic import BaseModel

from waystation.core.event import Event
from waystation.tools.media import is_genai


class OneOutput:
    """What a generator yields: at most one value is its output, and None is no value. Source: adk-semantics 1.8."""

    def __init__(self) -> None:
        self.value: Any = None

    def take(self, yielded: Any) -> None:
        """Take in one yielded value.

        Raises:
            ValueError: There is an output already; the text is ADK's.
            TypeError: It is an event.
        """
        if yielded is None:
            return
        if isinstance(yielded, Event):
            raise TypeError("A tool cannot yield events; yield its one output, and write to `tool_context.state`.")
        if self.value is not None:
            raise ValueError("Output already set. A node can produce at most one output.")
        whole = isinstance(yielded, BaseModel) and not is_genai(yielded)
        self.value = yielded.model_dump() if whole else yielded


async def invoke(function: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    """Call a function of any kind and return its result; sync ones run in a thread, with our contextvars."""
    if _is(inspect.isasyncgenfunction, function):
        return await _awaited(_last(function(*bound.args, **bound.kwargs)))
    if _is(inspect.iscoroutinefunction, function):
        return await _awaited(function(*bound.args, **bound.kwargs))
    result = await asyncio.to_thread(_called, function, bound)
    if inspect.isawaitable(result):  # a sync wrapper around an async function
        return await _awaited(result)
    return result


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    if inspect.isroutine(function) or isinstance(function, functools.partial | type):
        return kind(function)
    return kind(type(function).__call__)


def _called(function: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    try:
        result = function(*bound.args, **bound.kwargs)
        return _exhausted(result) if _is(inspect.isgeneratorfunction, function) else result
    except (StopIteration, SystemExit, asyncio.CancelledError) as error:
        raise _contained(error) from error


def _exhausted(generator: Generator[Any, None, Any]) -> Any:
    output = OneOutput()
    try:
        for yielded in generator:
            output.take(yielded)
    finally:
        generator.close()
    return output.value


async def _last(generator: AsyncGenerator[Any, None]) -> Any:
    output = OneOutput()
    try:
        async for yielded in generator:
            output.take(yielded)
    finally:
        await generator.aclose()
    return output.value


async def _awaited(result: Awaitable[Any]) -> Any:
    try:
        return await result
    except SystemExit as error:
        raise _contained(error) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _contained(error) from error


def _contained(error: BaseException) -> RuntimeError:
    """Return an exception to raise instead of one that must not reach the event loop.

    StopIteration out of a thread is never delivered, so its caller would wait for ever; SystemExit would end
    the whole worker; and CancelledError, when nobody cancelled, would read as if the call had been cancelled.
    """
    return RuntimeError(f"{error!r} was raised out of the tool.")
