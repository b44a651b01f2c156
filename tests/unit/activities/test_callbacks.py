"""Callbacks of author code, one hook at a time."""

import asyncio
import threading
from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest

from waystation.activities.callbacks import Attempt, CallbackRaised, Hooks, close_plugins, run_with_callbacks
from waystation.agents import Agent
from waystation.core.contract import ToolOutcome
from waystation.core.errors import CredentialStoreError, StoreFailed
from waystation.core.payload import repair_json
from waystation.models import LlmResponse
from waystation.plugins import BasePlugin
from waystation.tools.base_tool import BaseTool
from waystation.tools.outcome import convert_result
from waystation.tools.tool_context import CallbackContext, ToolContext

ROWS = [1] * 10_001


class Closing(BasePlugin):
    """A plugin with its own `close`."""

    def __init__(self, name: str, *, raises: bool = False, hangs: bool = False) -> None:
        super().__init__(name)
        self.closed, self._raises, self._hangs = 0, raises, hangs

    async def close(self) -> None:
        """Close."""
        self.closed += 1
        if self._raises:
            raise OSError
        if self._hangs:
            await asyncio.Event().wait()


async def test_every_plugin_is_closed_once(logs: list[MutableMapping[str, Any]]) -> None:
    """A plugin that raises or hangs does not prevent the others from closing."""
    broken, hanging, fine = Closing("broken", raises=True), Closing("hanging", hangs=True), Closing("fine")
    await close_plugins([broken, hanging, fine, fine], timeout_s=0.01)
    assert [broken.closed, hanging.closed, fine.closed] == [1, 1, 1]
    assert [(entry["event"], entry["error_type"]) for entry in logs] == [
        ("plugin.close_failed", "OSError"),
        ("plugin.close_failed", "TimeoutError"),
    ]


@pytest.mark.parametrize(
    "large", [ROWS, {"a": [[1] * 100] * 101}, ToolOutcome(function_call_id="", response={"a": ROWS})], ids=type
)
async def test_a_large_result_is_converted_outside_the_event_loop(large: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large result is converted in a thread, because it could delay other calls for a second.

    A small result is converted on the loop.
    """
    on_loop: list[bool] = []

    def note(*args: Any) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return repair_json(*args)

    monkeypatch.setattr("waystation.tools.outcome.repair_json", note)
    for value in ([1] * 100, large):
        run = AsyncMock(return_value=Attempt(ToolContext(), value))
        await run_with_callbacks(Hooks(Agent(name="a"), []), BaseTool(name="t", description=""), {}, ToolContext(), run)
    assert on_loop == [True, False]


async def test_a_cancelled_call_keeps_its_large_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is recorded even if the call is cancelled during the conversion, because the tool has run."""
    loop, started, cancelled = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def wait(*args: Any) -> Any:
        loop.call_soon_threadsafe(started.set)
        cancelled.wait(30)
        return repair_json(*args)

    monkeypatch.setattr("waystation.tools.outcome.repair_json", wait)
    converting = asyncio.create_task(convert_result(ROWS, context=ToolContext()))
    await started.wait()
    converting.cancel()
    loop.call_later(0, cancelled.set)
    assert (await converting).response == {"result": ROWS}


async def test_the_first_answer_ends_the_chain() -> None:
    """The first answer ends the chain: any truthy value for models and agents, any value but None for tools."""
    order: list[str] = []

    def noting(name: str, answer: Any) -> Any:
        def callback(*args: Any, **kwargs: Any) -> Any:
            order.append(name)
            return answer

        return callback

    agent = Agent(
        name="a",
        before_agent_callback=[noting("empty", ""), noting("full", "x"), noting("never", "y")],
        before_tool_callback=[noting("none", None), noting("dict", {}), noting("never", {"y": 1})],
    )
    own = Hooks(agent, [])
    assert await own.around_agent("before_agent_callback", CallbackContext()) == "x"
    assert await own.around_tool("before_tool_callback", BaseTool(name="t", description=""), {}, ToolContext()) == {}
    assert order == ["empty", "full", "none", "dict"]


async def test_a_model_callback_that_returns_another_type_is_refused() -> None:
    """A model callback that returns anything but an LlmResponse is refused."""
    own = Hooks(Agent(name="a", after_model_callback=lambda callback_context, llm_response: "text"), [])
    with pytest.raises(
        CallbackRaised, match="`after_model_callback` returned a value of type str; return an LlmResponse"
    ):
        await own.around_model("after_model_callback", CallbackContext(), llm_response=LlmResponse())


async def test_a_callback_that_hangs_fails_with_a_timeout() -> None:
    """A hanging callback fails with a timeout instead of blocking the invocation."""

    async def hang(callback_context: CallbackContext) -> None:
        await asyncio.Event().wait()

    own = Hooks(Agent(name="a", before_agent_callback=hang), [], timedelta(seconds=0.01))
    with pytest.raises(CallbackRaised, match="`before_agent_callback` raised TimeoutError") as raised:
        await own.around_agent("before_agent_callback", CallbackContext())
    assert raised.value.kind == "TimeoutError"


async def test_a_cancelled_call_lets_every_error_callback_clean_up() -> None:
    """All error callbacks run; their results and exceptions are ignored."""
    cleaned: list[str] = []

    class Locking(BasePlugin):
        async def on_tool_error_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, error: Any) -> Any:
            cleaned.append(f"plugin {type(error).__name__}")
            raise OSError

    def clean(tool: Any, args: Any, tool_context: Any, error: BaseException) -> dict[str, str]:
        cleaned.append("agent")
        return {"recovered": "no"}

    own = Hooks(Agent(name="a", on_tool_error_callback=[clean, clean]), [Locking("l")])
    await own.tool_cancelled(BaseTool(name="t", description=""), {}, ToolContext())
    assert cleaned == ["plugin CancelledError", "agent", "agent"]


@pytest.mark.parametrize(
    "error", [StoreFailed("s3://bucket", "it timed out"), CredentialStoreError("The credential store timed out.")]
)
async def test_a_store_failure_in_a_callback_is_retryable(error: Exception) -> None:
    """The callback is retried, and the error keeps its text."""

    def save(callback_context: CallbackContext) -> None:
        raise error

    own = Hooks(Agent(name="a", before_agent_callback=save), [])
    with pytest.raises(CallbackRaised, match=f"`before_agent_callback`: {error}") as raised:
        await own.around_agent("before_agent_callback", CallbackContext())
    assert raised.value.retryable
