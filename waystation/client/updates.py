"""Have a workflow take an update."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.service import RPCError, RPCStatusCode

T = TypeVar("T")

PAUSE_S = 0.2


async def when_ready(send: Callable[[], Awaitable[T]]) -> T:
    """Return what an update returns; `send` sends it, each time under the same id.

    A workflow whose last task failed, as when its worker was killed, is not ready: the server refuses the update, and
    nothing of it is recorded. It is then sent again, for as long as whoever calls this has patience.
    """
    while True:
        try:
            return await send()
        except RPCError as error:
            if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                raise
        await asyncio.sleep(PAUSE_S)
