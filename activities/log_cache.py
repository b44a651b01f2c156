"""Give activities the logs of their invocations, which are rebuilt from history and cached between calls.

Activities receive positions in the log, not content. The process that produced the previous results does not have to
read anything. Any other process reads the new part of the history. Queries are not used because they would have to wait
for the workflow's worker.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from cachetools import LRUCache
from temporalio.client import Client
from temporalio.worker import Interceptor, WorkflowInterceptorClassInput

from waystation.core.approval import Origin
from waystation.core.contract import Position
from waystation.core.errors import ForeignHistory, StoreFailed
from waystation.core.log import Body, EntryRef, Log, without_digest
from waystation.core.projection import (
    Carried,
    Projection,
    Scheduled,
    Sources,
    Started,
    catch_up,
    extend_log,
    position_of,
)
from waystation.history import HistoryReader, fetch_events_after, fetch_origin
from waystation.storage import Blobs
from waystation.workflows.ports import HAND_OVER, raw

MAX_RUNS = 200
"""Maximum number of cached runs. The log of an invocation that waits for its first approval takes 12 kB of memory, much
more than its recorded size, which `MAX_BYTES` limits."""
MAX_BYTES = 256_000_000
"""Maximum total size of the cached runs. Above it, the least recently used runs are evicted until only one is left. An
evicted run is read again when needed."""

current_log: ContextVar[Log | None] = ContextVar("current_log", default=None)
"""The log that the current activity has read, or None."""


@dataclass(slots=True)
class _Run:
    """The cached part of one workflow run."""

    log: Log
    sources: Sources = field(default_factory=Sources)
    reader: HistoryReader = field(default_factory=HistoryReader)
    carried: Carried | None = None
    """The state carried over from the previous run, or None once it is part of the log."""
    size: int = 0
    applied: set[EntryRef] = field(default_factory=set)
    """References to the first entries of the log, as many as `known`. Only histories that are read back need them."""
    known: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def note_applied(self) -> None:
        """Add the references to new entries of the log to `applied`."""
        self.applied.update(without_digest(entry.ref) for entry in self.log.since(self.known))
        self.known = self.log.length


class Logs(Protocol):
    """Gives activities the log of their invocation."""

    async def at(self, workflow_id: str, run_id: str, position: Position) -> Log:
        """Return the invocation's log, up to at least `position`."""

    async def keep(self, data: bytes) -> None:
        """Store a large result."""

    def put(self, run_id: str, ref: EntryRef, body: Body, size: int) -> None:
        """Cache a result that this process produced."""


class LogCache:
    """An LRU cache of the logs of workflow runs."""

    def __init__(
        self,
        client: Client,
        blobs: Blobs | None = None,
        *,
        max_runs: int = MAX_RUNS,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._blobs, self.clock = client, blobs or Blobs(), clock
        self._max_runs, self._max_bytes = max_runs, max_bytes
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._size = 0
        self._origins: LRUCache[str, Origin] = LRUCache(2 * max_runs)
        self.reads = 0
        """Number of history reads, for tests and metrics."""

    async def keep(self, data: bytes) -> None:
        """Put a large result into the store now, so that the SDK does not fail to store it later.

        Raises:
            StoreFailed: The store failed.
        """
        await self._client.data_converter.encode([raw(data)])

    async def at(self, workflow_id: str, run_id: str, position: Position) -> Log:
        """Return the log up to `position`, or further if other activities of the run requested later positions.

        Raises:
            ForeignHistory: The history does not contain entries that the position refers to.
            StoreFailed: The log of earlier runs cannot be loaded.
        """
        run = self._run(workflow_id, run_id)
        async with run.lock:
            try:
                if run.carried:
                    await self._continue(run_id, run, run.carried)
                if not catch_up(run.log, position, run.sources, self.clock()):
                    await self._read(run, workflow_id, run_id)
                    if not (
                        catch_up(run.log, position, run.sources, self.clock())
                        or await self._rebuild(run, workflow_id, run_id, position)
                    ):
                        raise ForeignHistory(
                            f"The history of {workflow_id!r} lacks entries that its own commands name."
                        )
            except (ForeignHistory, StoreFailed):
                if self._runs.get(run_id) is run:  # it may have been evicted and replaced
                    self._remove(run_id)
                raise
        self._trim()
        current_log.set(run.log)
        return run.log

    async def origin(self, workflow_id: str, run_id: str) -> Origin | None:
        """Return a run's workflow type, first run and parent, or None if the server has deleted the run's history.

        Raises:
            RPCError: The server cannot be reached.
        """
        if run_id not in self._origins:
            found = await fetch_origin(self._client, workflow_id, run_id)
            if found is None:
                return None
            self._origins[run_id] = found
        return self._origins[run_id]

    def expect(
        self, workflow_id: str, run_id: str, origin: Origin, ref: EntryRef, body: Body | Carried, size: int
    ) -> None:
        """Cache an entry or a carried state that a workflow in this process received. Its activities will need it."""
        self._origins[run_id] = origin
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
        """Cache a result that this process produced, so that it is not read back from the history.

        Ignore results of runs that are not cached.
        """
        if run := self._runs.get(run_id):
            run.sources.put(ref, body)
            self._grow(run_id, size)

    async def _read(self, run: _Run, workflow_id: str, run_id: str) -> None:
        """Read the new history events, and extend the log to the positions that commands in them refer to."""
        self.reads += 1
        events = await fetch_events_after(self._client, workflow_id, run_id, run.reader.last_event_id)
        self._grow(run_id, sum(event.ByteSize() for event in events))
        run.note_applied()
        for event in events:
            for fact in run.reader.read([event]):
                if isinstance(fact, Started) and not run.log.length and (carried := fact.carried()):
                    run.sources.continue_from(carried[1])
                    await self._continue(run_id, run, carried[1])
                    run.note_applied()
                ref = run.sources.learn(fact)
                if ref in run.applied:  # cached before, and now read back
                    run.sources.take(ref)
                if isinstance(fact, Scheduled):
                    catch_up(run.log, position_of(fact), run.sources, self.clock())

    async def _rebuild(self, run: _Run, workflow_id: str, run_id: str, position: Position) -> bool:
        """Rebuild the log from the whole history. Return whether it has the entries that the position refers to.

        The positions in commands are not always sufficient. If a worker replays while it handles an update, it receives
        the results of earlier, empty workflow tasks after the update. In its next replay, it receives them before the
        update. A command issued in between does not name these results, but the next command assumes that it did.
        """
        self.reads += 1
        log, reader = Log(workflow_id, timed=False), HistoryReader()
        projection = Projection(workflow_id, log)
        for event in await fetch_events_after(self._client, workflow_id, run_id, 0):
            for fact in reader.read([event]):
                if isinstance(fact, Started) and (carried := fact.carried()):
                    await extend_log(log, carried[1], self._blobs.get)
                projection.feed([fact])
        projection.flush()
        log = projection.log
        refs = {str(entry.ref) for entry in log.since(min(position.at, log.length))}
        if not refs.issuperset(position.new) or log.length < position.at + len(position.new):
            return False
        run.log, run.sources, run.reader, run.applied, run.known = log, projection.sources, reader, set(), 0
        return True

    async def _continue(self, run_id: str, run: _Run, carried: Carried) -> None:
        """Add the entries of earlier runs from the cache or from the store."""
        # The previous run has ended, so this run can reuse that run's log and extend it.
        previous = self._runs.get(carried.run_id)
        if previous and not carried.forked and previous.log.length <= carried.snapshot.entries:
            self._remove(carried.run_id)
            run.log, run.applied, run.known = previous.log, previous.applied, previous.known
            self._grow(run_id, previous.size)
        await extend_log(run.log, carried, self._blobs.get)
        run.carried = None

    def _grow(self, run_id: str, size: int) -> None:
        if run := self._runs.get(run_id):
            run.size += size
            self._size += size

    def _remove(self, run_id: str) -> None:
        self._size -= self._runs.pop(run_id).size

    def _trim(self) -> None:
        while len(self._runs) > 1 and (len(self._runs) > self._max_runs or self._size > self._max_bytes):
            self._remove(next(iter(self._runs)))


class CacheInterceptor(Interceptor):
    """Lets workflows in this process add what they receive to the cache, which saves a history read of 2 to 3 ms."""

    def __init__(self, logs: LogCache) -> None:
        """Store the cache and the running event loop. The cache is used only in that loop."""
        self._logs, self._loop = logs, asyncio.get_running_loop()

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> None:
        """Give workflows access to the function that adds to the cache."""
        input.unsafe_extern_functions[HAND_OVER] = self._deliver

    def _deliver(
        self, workflow_id: str, run_id: str, origin: Origin, ref: EntryRef, body: Body | Carried, size: int
    ) -> None:
        # Workflows run in threads.
        self._loop.call_soon_threadsafe(self._logs.expect, workflow_id, run_id, origin, ref, body, size)
