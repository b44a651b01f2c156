"""Invocations of sessions, as far as this process has read them: each entry is read and applied once."""

import asyncio

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from waystation.core.continued import Fetch
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.projection import Projection
from waystation.core.wire import CHILD_ENDED_SIGNAL
from waystation.history import HistoryReader, continued_as, fetch_events_after, fetch_log_before, run_id_of


class TurnReader:
    """Reads one invocation, and later what came since, through all of its runs."""

    def __init__(self, client: Client, id: str, fetch: Fetch) -> None:
        self._client, self._id, self._fetch = client, id, fetch
        self.run_id = ""
        """The run that was read last."""
        self._reader = HistoryReader()
        self._projection: Projection | None = None
        self.lock = asyncio.Lock()
        self.announced = False
        """Whether it has told its session that it is over, which it does one workflow task before it is."""
        self.told: tuple[int, JsonObject] = (0, {})
        """How many entries were reported last, and the state after them."""

    async def log(self) -> Log:
        """Return the log as of now; it is one log that grows.

        Raises:
            RPCError: The server has no such invocation, or does not answer.
            ForeignHistory: It is none, or its history is damaged.
            StoreFailed: What earlier runs did cannot be had.
        """
        if self._projection:
            try:
                log = await self._read_on()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                # The run is past its retention; the present one may not be.
            else:
                if not (log.ended and log.ended.status == "terminated"):
                    return log
                # Whoever resets an invocation has this run terminated, and another one goes on from some point of it.
        self._begin("")
        return await self._read_on()

    def _begin(self, run_id: str) -> None:
        self.run_id, self._reader, self._projection = run_id, HistoryReader(), None
        self.announced = False

    async def _read_on(self) -> Log:
        log: Log | None = None
        while True:
            events = await fetch_events_after(self._client, self._id, self.run_id, self._reader.last_event_id)
            projection, self._projection = self._projection, None  # half read, should this fail
            if projection is None:
                log = log or await fetch_log_before(self._client, self._id, events[0], self._fetch)
                projection = Projection(self._id, log)
                self.run_id = self.run_id or run_id_of(events)
            projection.feed(self._reader.read(events))
            self.announced = self.announced or any(map(_announces, events))
            projection.flush()
            self._projection, log = projection, projection.log
            if not events or (following := continued_as(events[-1])) is None:
                return log
            self._begin(following)


def _announces(event: HistoryEvent) -> bool:
    sent = event.signal_external_workflow_execution_initiated_event_attributes
    return sent.signal_name == CHILD_ENDED_SIGNAL
