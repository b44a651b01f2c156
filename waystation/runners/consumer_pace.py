"""Lets activities wait for the program to handle earlier events, so that both take turns as in ADK.

In ADK, an agent does not continue before the program asks for the next event. A tool that prints something therefore
prints it after the program has handled the event with the tool's call.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from temporalio import activity
from temporalio.common import RawValue
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from waystation.core.contract import Position
from waystation.core.payload import decode

WAIT_LIMIT_S = 5.0
"""How long an activity waits for the program at most."""


class ConsumerPace(Interceptor):
    """Holds activities until the program has handled the events that precede them."""

    def __init__(self) -> None:
        self._handled: dict[str, int] = {}
        """Number of log entries whose events the program has handled, by ID of the invocations that it follows."""
        self._changed = asyncio.Condition()

    async def advance(self, invocation_id: str, length: int | None) -> None:
        """Record how many log entries the program has handled. None means that it no longer follows the invocation."""
        async with self._changed:
            if length is None:
                self._handled.pop(invocation_id, None)
            else:
                self._handled[invocation_id] = length
            self._changed.notify_all()

    async def wait(self, invocation_id: str, length: int) -> None:
        """Wait until the program has handled this many log entries or does not follow the invocation."""
        try:
            async with asyncio.timeout(WAIT_LIMIT_S), self._changed:
                await self._changed.wait_for(lambda: self._handled.get(invocation_id, length) >= length)
        except TimeoutError:
            await self.advance(invocation_id, None)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `temporalio.worker.Interceptor`."""
        pace = self

        class Paced(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                info = activity.info()
                # The history contains the event with a local activity's call only after the activity has ended.
                if info.workflow_id and not info.is_local and (length := _read_length(input.args)) is not None:
                    await pace.wait(info.workflow_id, length)
                return await super().execute_activity(input)

        return Paced(next)


def _read_length(args: Iterable[Any]) -> int | None:
    """Return the number of log entries that precede an activity, or None if its input does not contain it."""
    for arg in args:
        if isinstance(arg, RawValue):
            try:
                position = Position.model_validate(decode(arg.payload.data))
            except (ValidationError, ValueError):
                return None
            return position.at + len(position.new)
        if isinstance(arg, list | tuple):
            return _read_length(arg)
    return None
