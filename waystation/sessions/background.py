"""The thread in which a program's session services and runners work.

A program may run several event loops, one after another, or none. The connection to Temporal and the workers must
outlive them, so they belong to an event loop of their own.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import structlog
from temporalio.client import Client

from waystation.client import connect, connection_problem, connection_settings, is_address_configured
from waystation.core.errors import WaystationError
from waystation.embedded import find_or_start
from waystation.logs import configure_core

T = TypeVar("T")
DATABASE = Path(".waystation", "temporal.db")
STOP_LIMIT_S = 10.0


class CannotConnect(WaystationError):
    """The configured Temporal server cannot be reached.

    Start the server, or correct its address.
    """

    def __init__(self, address: str | None, problem: str) -> None:
        super().__init__(
            f"Temporal cannot be reached at {address}: {problem}. Start a server there, or remove the address "
            "(TEMPORAL_ADDRESS or the profile) to use an embedded server."
        )


class Background:
    """An event loop in a thread, with a connection to Temporal. It starts when it is first used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: asyncio.Task[Client] | None = None
        self.at_exit: list[Callable[[], Awaitable[None]]] = []
        """Functions that stop workers, to call in the event loop before the program exits."""

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the background's event loop. Call this from any other thread."""
        with self._lock:
            if self._loop is None:
                self._loop = self._start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the background's event loop, and wait for its result. Cancellation is passed on."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def discard(self, stream: AsyncGenerator[Any]) -> None:
        """Close a generator that belongs to the background's event loop, without waiting for it."""

        async def close() -> None:
            await stream.aclose()

        with self._lock:
            if self._loop is not None and self._loop.is_running():
                asyncio.run_coroutine_threadsafe(close(), self._loop)

    async def client(self) -> Client:
        """Return the connection. If no server's address is configured, connect to the folder's embedded server.

        Raises:
            CannotConnect: The configured server does not respond.
            EmbeddedServerError: The embedded server did not start.
            InvalidConfiguration: The configured address is invalid.
        """
        if self._client is None or (self._client.done() and self._client.exception()):
            self._client = asyncio.create_task(_connect())
        return await asyncio.shield(self._client)

    def _start(self) -> asyncio.AbstractEventLoop:
        if not structlog.is_configured():
            # By default, structlog writes to standard output, which belongs to the program.
            structlog.configure(
                processors=[structlog.stdlib.add_log_level, structlog.stdlib.render_to_log_kwargs],
                wrapper_class=structlog.stdlib.BoundLogger,
                logger_factory=structlog.stdlib.LoggerFactory(),
            )
        with suppress(RuntimeError):  # the program already uses Temporal
            configure_core()
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="waystation", daemon=True)
        thread.start()

        def stop() -> None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self.stop_workers(), loop).result(STOP_LIMIT_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(STOP_LIMIT_S)

        # Unlike `atexit`, this runs while thread pools still accept work, which a worker needs until it has stopped.
        threading._register_atexit(stop)  # type: ignore[attr-defined]
        return loop

    async def stop_workers(self) -> None:
        """Stop the workers. Call this in the background's event loop."""
        while self.at_exit:
            await self.at_exit.pop()()


BACKGROUND = Background()
"""The background of this process."""


async def _connect() -> Client:
    address = None if is_address_configured() else await find_or_start(DATABASE)
    try:
        return await connect(address=address)
    except RuntimeError as error:
        configured = address or connection_settings().get("target_host")
        raise CannotConnect(configured, connection_problem(error)) from None
