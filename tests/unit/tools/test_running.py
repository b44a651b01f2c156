"""Functions of all kinds are called."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


async def call(function: Callable[..., Any]) -> Any:
    return await FunctionTool(function).run_async(args={}, tool_context=ToolContext())


def thread() -> int:
    return threading.get_ident()


async def athread() -> int:
    return threading.get_ident()


class Sync:
    def __call__(self) -> int:
        return threading.get_ident()

    def method(self) -> int:
        return threading.get_ident()

    @staticmethod
    def static() -> int:
        return threading.get_ident()


class Async:
    async def __call__(self) -> int:
        return threading.get_ident()

    async def method(self) -> int:
        return threading.get_ident()

    @classmethod
    async def of_class(cls) -> int:
        return threading.get_ident()


@functools.wraps(athread)
def wrapped() -> Awaitable[int]:
    """Return the coroutine of an async function: the wrapper is itself a sync function."""
    return athread()


@pytest.mark.parametrize(
    "function", [thread, functools.partial(thread), Sync(), Sync().method, Sync.static, lambda: thread()]
)
async def test_sync_functions_run_in_threads(function: Callable[..., Any]) -> None:
    """Sync functions run in threads, because they would block every other call of the worker."""
    assert await call(function) != threading.get_ident()


@pytest.mark.parametrize(
    "function",
    [athread, functools.partial(athread), Async(), Async().method, Async.of_class, wrapped, lambda: athread()],
)
async def test_async_functions_run_on_the_event_loop(function: Callable[..., Any]) -> None:
    """A coroutine from a sync wrapper is awaited on the loop, too."""
    assert await call(function) == threading.get_ident()


async def test_sync_tools_run_at_the_same_time() -> None:
    """All sync tools run at the same time, because each waits for the others.

    The event loop's default pool has at most 32 threads, and often only six.
    """
    barrier = threading.Barrier(40, timeout=10)
    await asyncio.gather(*(call(lambda: barrier.wait() and None) for _ in range(40)))


async def test_context_variables_reach_sync_functions() -> None:
    """Sync functions see context variables, on which tracing and logging rely."""
    tenant = contextvars.ContextVar("tenant", default="none")
    tenant.set("acme")
    assert await call(lambda: tenant.get()) == "acme"


async def test_an_exception_reaches_the_caller() -> None:
    """An exception reaches the activity, which decides how to handle it."""

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await call(fail)


def stop_iteration() -> None:
    next(iter(()))


def leave() -> None:
    raise SystemExit(3)


async def aleave() -> None:
    raise SystemExit(3)


def cancelled() -> None:
    raise asyncio.CancelledError


async def acancelled() -> None:
    waiting = asyncio.ensure_future(asyncio.sleep(60))
    waiting.cancel()
    await waiting


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (stop_iteration, "StopIteration()"),
        (leave, "SystemExit(3)"),
        (aleave, "SystemExit(3)"),
        (cancelled, "CancelledError()"),
        (acancelled, "CancelledError()"),
    ],
)
async def test_a_dangerous_exception_becomes_an_ordinary_one(function: Callable[..., Any], cause: str) -> None:
    """A dangerous exception is converted.

    StopIteration in a thread hangs its caller, SystemExit ends the worker, and CancelledError looks like Waystation's.
    """
    with pytest.raises(RuntimeError) as raised:
        await asyncio.wait_for(call(function), timeout=10)
    assert str(raised.value) == f"{cause} was raised out of the tool."


async def test_a_real_cancellation_passes() -> None:
    """Cancelling the call cancels an async tool."""
    started, cancelled_in = asyncio.Event(), []

    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled_in.append("cancelled")
            raise

    running = asyncio.ensure_future(call(wait))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled_in == ["cancelled"]
