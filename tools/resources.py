"""Resources that the tools of a worker share, such as database pools and HTTP clients.

The lifespan of an app opens them before the worker polls for work, and closes them when its last call has ended.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from waystation.core.errors import WaystationError
from waystation.tools.places import find_author_line

log = structlog.get_logger("waystation.worker")

Lifespan = Callable[[], AbstractAsyncContextManager[Mapping[str, Any]]]
"""A function without parameters whose async context manager yields the resources by name."""
LIFESPAN_LIMIT = timedelta(seconds=60)
"""How long a lifespan may take to open its resources, and again to close them, if its app sets no other limit."""
_PASSWORD = re.compile(r"(?<=//)[^/@\s]+(?=@)")


class UnknownResource(WaystationError, LookupError):
    """A tool or callback used a resource that its app does not open.

    Yield the resource from the lifespan of the app. In a test of a tool, pass it: `ToolContext(resources={…})`.
    """


class LifespanFailed(WaystationError):
    """The lifespan of an app did not open its resources, so the worker does not start.

    Repair the cause that the message names, such as an unreachable database.
    """


@dataclass(frozen=True, slots=True)
class Resource:
    """Marks a parameter of a tool that receives a resource: `db: Annotated[Pool, Resource()]`.

    Models neither see nor fill in the parameter.
    """

    name: str = ""
    """The name of the resource. By default, that of the parameter."""


class Resources(dict[str, Any]):
    """The resources of an app by name."""

    def __missing__(self, name: str) -> Any:
        raise UnknownResource(
            f"No resource named {name!r}. Yield it from the `lifespan` of the App. The resources of this app: "
            f"{', '.join(map(repr, self)) or 'none'}."
        )


NO_RESOURCES = Resources()


class Lifespans:
    """The resources of a worker, which are open while at least one `opened` block runs."""

    def __init__(self, list_lifespans: Callable[[], Mapping[str, tuple[Lifespan, timedelta]]]) -> None:
        """Create lifespans that are not entered yet.

        `list_lifespans` returns those to enter, each with its limit, by the name of an agent. A function that several
        apps have is entered once.
        """
        self._list_lifespans, self._users = list_lifespans, 0
        self._opened: dict[Lifespan, Resources] = {}
        self._ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    def find(self, lifespan: Lifespan | None) -> Resources:
        """Return the resources that a lifespan has opened."""
        return self._opened.get(lifespan, NO_RESOURCES) if lifespan else NO_RESOURCES

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep the resources open. The first block opens them, and the last one closes them.

        Raises:
            LifespanFailed: A resource cannot be opened. Those that are open already are closed again.
        """
        if not self._users:
            self._ready, self._stop = asyncio.get_running_loop().create_future(), asyncio.Event()
            # A task of its own, because some libraries require that the task that opens them also closes them.
            self._task = asyncio.create_task(self._hold(self._ready, self._stop, self._task))
        ready, task = self._ready, self._task
        assert ready
        assert task
        self._users += 1
        try:
            await asyncio.shield(ready)
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._stop.set()
                if not ready.done():
                    task.cancel()
                await asyncio.wait((task,))

    async def _hold(
        self, ready: asyncio.Future[None], stop: asyncio.Event, previous: asyncio.Task[None] | None
    ) -> None:
        if previous and not previous.done():
            await asyncio.wait((previous,))
        try:
            async with AsyncExitStack() as stack:
                stack.callback(self._opened.clear)
                for name, (lifespan, limit) in self._list_lifespans().items():
                    if lifespan not in self._opened:
                        self._opened[lifespan] = await _enter(stack, name, lifespan, limit)
                if not ready.done():
                    ready.set_result(None)
                await stop.wait()
        except LifespanFailed as error:
            if not ready.done():
                ready.set_exception(error)
        finally:
            if not ready.done():  # no block may wait for what has failed in another way
                canceled = LifespanFailed("The lifespan of an app was canceled while it opened its resources.")
                ready.cancel() if stop.is_set() else ready.set_exception(canceled)


async def _enter(stack: AsyncExitStack, name: str, lifespan: Lifespan, limit: timedelta) -> Resources:
    within = f"its resources within {limit.total_seconds():g} s"

    async def leave() -> None:
        closing = asyncio.timeout(limit.total_seconds())
        try:
            async with closing:
                await context.__aexit__(None, None, None)
        except Exception as error:  # noqa: BLE001  # from user code; the worker has ended
            log.warning("lifespan.failed", agent=name, problem=_describe(error, closing, f"closed {within}"))

    opening = asyncio.timeout(limit.total_seconds())
    try:
        context = lifespan()
        async with opening:
            resources = Resources(await context.__aenter__())
    except Exception as error:  # user code raises anything
        problem = _describe(error, opening, f"opened {within}")
        raise LifespanFailed(f"The lifespan of the app of {name!r} failed: {problem}") from error
    stack.push_async_callback(leave)
    return resources


def _describe(error: Exception, limit: asyncio.Timeout, done: str) -> str:
    if limit.expired():
        return f"it has not {done}. Repair what it waits for, or raise the `lifespan_limit` of the App."
    return _PASSWORD.sub("…", f"{type(error).__name__} at {find_author_line(error)}: {error}")
