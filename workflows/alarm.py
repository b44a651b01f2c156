"""A timer that runs no later than to the next moment at which time changes something."""

import asyncio
from collections.abc import Callable

from temporalio import workflow

from waystation.workflows.ports import now


class Alarm:
    """One timer at a time. A timer that is no longer needed is left to fire: cancelling it costs events, too."""

    def __init__(self, ring: Callable[[], None]) -> None:
        """`ring` is called when a timer fires."""
        self._ring = ring
        self._timer: asyncio.Task[None] | None = None
        self.until: float | None = None
        """When the timer fires, in seconds since 1970; None when none runs."""

    def arm(self, moment: float | None) -> None:
        """Have it ring no later than at `moment`."""
        if moment is None or (self.until is not None and self.until <= moment):
            return

        async def wake() -> None:
            await workflow.sleep(max(moment - now(), 0.001), summary="deadline")
            if self.until == moment:
                self.until = None
            self._ring()

        self.until = moment
        self._timer = asyncio.create_task(wake())
