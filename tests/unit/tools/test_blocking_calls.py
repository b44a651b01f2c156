"""Blocking calls that are visible in the source of a coroutine."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from functools import partial, wraps
from time import sleep
from typing import Any

import pytest

from waystation.agents import Agent
from waystation.apps import Registry
from waystation.testing import ScriptedModel
from waystation.tools import FunctionTool
from waystation.worker.tool_checks import find_blocking_calls, list_undescribed_tools


async def by_module() -> None:
    time.sleep(0)  # noqa: ASYNC251  # found by the code under test


async def by_name() -> None:
    if True:
        sleep(0)  # noqa: ASYNC251  # found by the code under test


async def by_local_import() -> None:
    from time import sleep as pause

    pause(0)  # noqa: ASYNC251  # found by the code under test


async def by_process() -> None:
    subprocess.run(["true"], check=True)  # noqa: ASYNC221  # found by the code under test


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function."""

    @wraps(function)
    async def traced(*args: Any) -> Any:
        return await function(*args)

    return traced


async def in_a_thread() -> None:
    await asyncio.to_thread(time.sleep, 0)


async def in_a_function_for_a_thread() -> None:
    def wait() -> None:
        time.sleep(0)

    await asyncio.to_thread(wait)


def in_a_plain_function() -> None:
    time.sleep(0)


async def not_blocking() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (by_module, "time.sleep"),
        (by_name, "time.sleep"),
        (by_local_import, "time.sleep"),
        (by_process, "subprocess.run"),
        (traced(by_module), "time.sleep"),
    ],
)
def test_a_blocking_call_in_a_coroutine_is_reported(function: Callable[..., Any], name: str) -> None:
    """The report has the line of the call, however the function was imported, and even below a decorator."""
    [(call, place)] = find_blocking_calls(function)
    assert call == name
    assert place.startswith(f"{__file__}:")


@pytest.mark.parametrize("function", [in_a_thread, in_a_function_for_a_thread, in_a_plain_function, not_blocking, len])
def test_calls_outside_the_event_loop_are_not_reported(function: Callable[..., Any]) -> None:
    """Threads may block, and code without a source is skipped."""
    assert list(find_blocking_calls(function)) == []


def test_parameters_without_types_are_listed() -> None:
    """Parameters without types are listed, except a partial's bound argument and the context."""

    def pay(amount, to: str, tool_context) -> None:  # type: ignore[no-untyped-def]
        return None

    def fine(amount: int) -> None:
        """Pay."""

    tools = [pay, FunctionTool(partial(pay, 5), name="pay_five", title="Pay {to}"), fine]
    registry = Registry.of(Agent(name="payer", model=ScriptedModel(), tools=tools))
    assert list(list_undescribed_tools(registry)) == [
        "Tool 'pay' of agent 'payer' has no description, so models only see its name; add a docstring.",
        "Tool 'pay' of agent 'payer' has parameters without a type: amount; annotate them.",
        "Tool 'pay_five' of agent 'payer' has no description, so models only see its name; add a docstring.",
    ]
