"""The logs of invocations as activities read them: rebuilt from history, cached between calls.

Activities are given positions, not content. In the process that made the previous results nothing has to be read; any
other process reads the part of the history that it has not seen. Never a query: it waits for the workflow's worker.
"""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from temporalio.client import Client
from temporalio.worker import Interceptor, WorkflowInterceptorClassInput

from waystation.core import (
    Body,
    Carried,
    EntryRef,
    ForeignHistory,
    Log,
    Position,
    Projection,
    Scheduled,
    Sources,
    Started,
    StoreFailed,
    catch_up,
    extend_log,
    position_of,
)
from waystation.history import HistoryReader, fetch_events_after
from waystation.storage import Blobs
from waystation.workflows.ports import HAND_OVER, raw

MAX_RUNS = 1_000
MAX_BYTES = 256_000_000
"""Content kept over all runs; the one used longest ago goes first and is read again when needed."""


@dataclass(slots=True)
class _Run:
    """One run as far as this process knows it."""

    log: Log
    sources: Sources = field(default_factory=Sources)
    reader: HistoryReader = field(default_factory=HistoryReader)
    carried: Carried | None = None
    """What it has from the run that it continues; None once that is part of the log."""
    size: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Logs(Protocol):
    """Where activities have the log from that they go on with."""

    async def at(self, workflow_id: str, run_id: str, position: Position) -> Log:
        """Return the log at `position`, or further on."""

    async def keep(self, data: bytes) -> None:
        """Keep a large result."""

    def put(self, run_id: str, ref: EntryRef, body: Body, size: int) -> None:
        """Remember a result that this process made."""


class LogCache:
    """The logs of the runs that this process works for."""

    def __init__(
        self, client: Client, blobs: Blobs | None = None, *, max_runs: int = MAX_RUNS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._client, self._blobs = client, blobs or Blobs()
        self._max_runs, self._max_bytes = max_runs, max_bytes
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self.reads = 0
        """How often history was read; for tests and metrics."""

    async def keep(self, data: bytes) -> None:
        """Keep a large result where the SDK will look for it when it is returned.

        Raises:
            StoreFailed: It cannot be kept.
        """
        await self._client.data_converter.encode([raw(data)])

    async def at(self, workflow_id: str, run_id: str, position: Position) -> Log:
        """Return the log at `position`, or further on when other activities of the run have asked for later ones.

        Raises:
            ForeignHistory: The history does not hold what the position refers to.
            StoreFailed: What earlier runs did cannot be had.
        """
        run = self._run(workflow_id, run_id)
        async with run.lock:
            try:
                if run.carried:
                    await self._continue(run, run.carried)
                if not catch_up(run.log, position, run.sources, time.time()):
                    await self._read(run, workflow_id, run_id)
                    if not (
                        catch_up(run.log, position, run.sources, time.time())
                        or await self._by_rule(run, workflow_id, run_id, position)
                    ):
                        raise ForeignHistory(
                            f"The history of {workflow_id!r} lacks entries that its own commands name."
                        )
            except (ForeignHistory, StoreFailed):
                if self._runs.get(run_id) is run:  # it may have been evicted, and another one begun
                    del self._runs[run_id]
                raise
        self._trim()
        return run.log

    def expect(self, workflow_id: str, run_id: str, ref: EntryRef, body: Body | Carried, size: int) -> None:
        """Remember what a workflow of this process was given; its activities will come for it."""
        run = self._run(workflow_id, run_id)
        if not isinstance(body, Carried):
            self.put(run_id, ref, body, size)
        elif not run.log.length and not run.lock.locked():
            run.carried = body
            run.sources.continue_from(body)
        self._trim()

    def _run(self, workflow_id: str, run_id: str) -> _Run:
        if (run := self._runs.get(run_id)) is None:
            run = self._runs[run_id] = _Run(Log(workflow_id, timed=False))
        else:
            self._runs.move_to_end(run_id)
        return run

    def put(self, run_id: str, ref: EntryRef, body: Body, size: int) -> None:
        """Remember a result that this process made, so that it need not read it back."""
        if run := self._runs.get(run_id):
            run.sources.put(ref, body)
            run.size += size

    async def _read(self, run: _Run, workflow_id: str, run_id: str) -> None:
        """Read the events not seen yet, and follow the commands among them."""
        self.reads += 1
        events = await fetch_events_after(self._client, workflow_id, run_id, run.reader.last_event_id)
        run.size += sum(event.ByteSize() for event in events)
        applied = {entry.ref for entry in run.log.entries}
        for event in events:
            for fact in run.reader.read([event]):
                if isinstance(fact, Started) and not run.log.length and (given := fact.carried()):
                    run.sources.continue_from(given[1])
                    await self._continue(run, given[1])
                    applied = {entry.ref for entry in run.log.entries}
                ref = run.sources.learn(fact)
                if ref in applied:  # made here, and now read back
                    run.sources.take(ref)
                if isinstance(fact, Scheduled):
                    catch_up(run.log, position_of(fact), run.sources, time.time())

    async def _by_rule(self, run: _Run, workflow_id: str, run_id: str, position: Position) -> bool:
        """Rebuild the log as every other reader does; return whether it holds what the position refers to.

        What commands say is not always enough: a worker that replays while it takes an update is given the results of
        earlier, empty workflow tasks after the update, and on its next replay before it. A command that was issued in
        between does not name them then, and the next one takes it that it did.
        """
        self.reads += 1
        log, reader = Log(workflow_id, timed=False), HistoryReader()
        projection = Projection(workflow_id, log)
        for event in await fetch_events_after(self._client, workflow_id, run_id, 0):
            for fact in reader.read([event]):
                if isinstance(fact, Started) and (given := fact.carried()):
                    await extend_log(log, given[1], self._blobs.get)
                projection.feed([fact])
        projection.flush()
        log = projection.log
        refs = {str(entry.ref) for entry in log.since(min(position.at, log.length))}
        if not refs.issuperset(position.new) or log.length < position.at + len(position.new):
            return False
        run.log, run.sources, run.reader = log, projection.sources, reader
        return True

    async def _continue(self, run: _Run, carried: Carried) -> None:
        """Have the log hold all that earlier runs did: what this process knows of them, and what the store has."""
        # The run before is over, so its log can grow on as this one's.
        before = self._runs.get(carried.run_id)
        if before and not carried.forked and before.log.length <= carried.snapshot.entries:
            del self._runs[carried.run_id]
            run.log = before.log
            run.size += before.size
        await extend_log(run.log, carried, self._blobs.get)
        run.carried = None

    def _trim(self) -> None:
        while len(self._runs) > 1 and (
            len(self._runs) > self._max_runs or sum(run.size for run in self._runs.values()) > self._max_bytes
        ):
            self._runs.popitem(last=False)


class HandOver(Interceptor):
    """Lets workflows of this process say what they were given from outside: it saves reading it back, 2 to 3 ms."""

    def __init__(self, logs: LogCache) -> None:
        """Deliver to `logs`, whose event loop is the running one."""
        self._logs, self._loop = logs, asyncio.get_running_loop()

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> None:
        """Give workflows the function by which they say it."""
        input.unsafe_extern_functions[HAND_OVER] = self._deliver

    def _deliver(self, workflow_id: str, run_id: str, ref: EntryRef, body: Body | Carried, size: int) -> None:
        # Workflows run in threads.
        self._loop.call_soon_threadsafe(self._logs.expect, workflow_id, run_id, ref, body, size)
