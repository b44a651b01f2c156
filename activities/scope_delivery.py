"""Read `user:` and `app:` state when an invocation begins, and deliver the invocation's writes to it."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakValueDictionary

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.common import Priority
from temporalio.service import RPCError, RPCStatusCode

from waystation.activities.activity_attempt import activity_failure, convert_errors, send_heartbeats
from waystation.activities.log_cache import LogCache
from waystation.core import ids
from waystation.core.contract import TASK_TIMEOUT, InvocationInput
from waystation.core.errors import ForeignHistory, ScopeNameTooLong, StoreFailed
from waystation.core.log import Log
from waystation.core.payload import JsonObject, encode
from waystation.core.scope_state import (
    APPLY_SIGNAL,
    MAX_SCOPE_BYTES,
    SCOPE_WORKFLOW,
    USER,
    RefusedDelta,
    ScopeDelivery,
    ScopeDelta,
    ScopeFold,
    ScopeReport,
    app_scope,
    user_scope,
)
from waystation.history import ScopeReader, check_start
from waystation.storage import Owner
from waystation.storage.driver import without_storage

events = structlog.get_logger("waystation.activities")

MAX_SIGNAL_BYTES = 1_000_000
MAX_SHARING = 100
"""Maximum number of deltas in a signal of several activities. A scope remembers a limited number of refused deltas and
of invocation runs. With more, a delta could be forgotten before its sender looks for it."""
MAX_RUN_BYTES = 20_000_000
"""Total size of a run's signals, in bytes, at which it is sent no more. A scope continues as new much earlier, unless
no worker runs its workflow task. At 50 MB, the server would terminate it, and its state would be lost."""
SIGNAL_LIMIT_REACHED = "limit for signal events"
"""Part of the server's error for a run that has as many signals as it accepts, by default 10,000. The scope continues
as new once its workflow task runs. The status is that of an invalid argument."""
SEEN_WITHIN_S = 15.0
"""How long to wait for a signal to appear in the scope's history before the delivery fails. The server delays signals
while a workflow task is running, by up to 10 s if the task's worker was lost."""


class ScopeSource(Protocol):
    """Reads `user:` and `app:` state when an invocation begins."""

    async def check_start(self, invocation_id: str, started: InvocationInput) -> None:
        """Check that the invocation may begin; see `waystation.history.check_start`."""

    async def read(self, started: InvocationInput) -> JsonObject:
        """Return the state of the user and the app. The keys include their prefixes."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Deltas of several activities that are sent in one signal."""

    deltas: list[ScopeDelta] = field(default_factory=list)
    size: int = 0
    refused: asyncio.Task[list[RefusedDelta]] = field(init=False)
    """Sends the deltas. Its result contains those that the scope refused."""


class ScopeKeeper:
    """Reads `user:` and `app:` state for invocations, and runs the activity `apply_scopes`."""

    def __init__(self, client: Client, logs: LogCache) -> None:
        self._logs = logs
        # Keep signals inline, because readers of the state may use a different store. Every signal fits in a history.
        self._client = without_storage(client)
        self.scopes = ScopeReader(client)
        self._batches: dict[str, _Batch] = {}
        """The batch of each scope that still accepts deltas."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def check_start(self, invocation_id: str, started: InvocationInput) -> None:
        """Check that an invocation may begin, also if another program than Waystation's client has started it."""
        await check_start(self._client, invocation_id, Owner(started.app_key, started.user_id))

    async def read(self, started: InvocationInput) -> JsonObject:
        """Return the state of the user and the app. The keys include their prefixes.

        Raises:
            ScopeNameTooLong: The names are too long for a workflow ID.
            ForeignHistory: A different kind of workflow has this ID.
        """
        scopes = app_scope(started.app_key), user_scope(started.app_key, started.user_id)
        app, user = await asyncio.gather(*map(self.scopes.read, scopes))
        return {**app.state, **user.state}

    async def apply(self, params: ScopeDelivery) -> bytes:
        """Return an encoded `ScopeReport`.

        Raises:
            ApplicationError: The server refused the signals or the log is damaged (not retryable), or the delivery
                failed for another reason (retryable).
        """
        info = activity.info()
        run = info.workflow_run_id or ""
        # Send heartbeats so that the workflow soon notices if this process is lost.
        with send_heartbeats(), convert_errors("scopes.failed"):
            log = await self._logs.at(info.workflow_id or "", run, params)
            refused = await self._deliver(log, run, params.after, params.last)
        return ScopeReport(refused=tuple(refused)).encode()

    async def deliver_rest(self, log: Log, run: str) -> None:
        """Deliver the pending writes of an invocation that was terminated or timed out.

        Raises:
            ApplicationError: The server refused or did not receive the signals.
            StoreFailed: The signals did not appear in a scope's history in time.
        """
        if (last := log.state.unflushed()) is not None:
            await self._deliver(log, run, log.state.session.scopes_flushed, last)

    async def _deliver(self, log: Log, run: str, after: int, last: int) -> list[RefusedDelta]:
        refused: list[RefusedDelta] = []
        deltas = log.state.scope_deltas(run, after, last)
        for prefix in dict.fromkeys(prefix for prefix, _ in deltas):
            refused += await self._deliver_to(prefix, log, [delta for scope, delta in deltas if scope == prefix])
        for delta in refused:
            events.warning("scope_delta.refused", delta=delta.id, reason=delta.reason, invocation_id=log.invocation_id)
        events.info(
            "scopes.delivered", invocation_id=log.invocation_id, deltas=len(deltas), refused=len(refused), last=last
        )
        return refused

    async def _deliver_to(self, prefix: str, log: Log, deltas: Sequence[ScopeDelta]) -> list[RefusedDelta]:
        started = log.state.input
        assert started is not None
        try:
            app = started.app_key
            scope_id = user_scope(app, started.user_id) if prefix == USER else app_scope(app)
        except ScopeNameTooLong as error:
            return _refuse(deltas, str(error))
        reasons = [(delta, _find_fault(prefix, delta)) for delta in deltas]
        fitting = [delta for delta, reason in reasons if not reason]
        refused = [RefusedDelta(id=delta.id, reason=reason) for delta, reason in reasons if reason]
        try:
            for signal in _batch_deltas(fitting):
                refused += await self._send_together(scope_id, app, signal)
        except ForeignHistory as error:
            refused += _refuse(fitting, str(error))
        return refused

    async def _send_together(self, scope_id: str, app: str, deltas: Sequence[ScopeDelta]) -> list[RefusedDelta]:
        """Send deltas, which fit into one signal, and return those that the scope refused.

        A signal is sent once the previous one is in the scope's history. All deltas that wait for this share the next
        signal, because a scope cannot keep up with a signal from each of many activities.
        """
        size = sum(map(_size, deltas))
        batch = self._batches.get(scope_id)
        if batch is None or batch.size + size > MAX_SIGNAL_BYTES or len(batch.deltas) + len(deltas) > MAX_SHARING:
            batch = self._batches[scope_id] = _Batch()
            batch.refused = asyncio.create_task(self._send_batch(scope_id, app, batch))
        batch.deltas += deltas
        batch.size += size
        names = {(delta.id, delta.run) for delta in deltas}
        # Shield the task, so that an activity that is canceled does not cancel the others.
        refused = await asyncio.shield(batch.refused)
        return [delta for delta in refused if (delta.id, delta.run) in names]

    async def _send_batch(self, scope_id: str, app: str, batch: _Batch) -> list[RefusedDelta]:
        lock = self._locks.setdefault(scope_id, asyncio.Lock())
        async with lock:
            if self._batches.get(scope_id) is batch:
                del self._batches[scope_id]
            known = self.scopes.known_bytes(scope_id)
            if known > MAX_RUN_BYTES and (await self.scopes.read(scope_id)).bytes > MAX_RUN_BYTES:
                raise StoreFailed(scope_id, "no worker with its task queue has processed what was written before")
            await self._send(scope_id, app, batch.deltas)
            return await self._wait_for_refusals(scope_id, batch.deltas)

    async def _send(self, scope_id: str, app: str, deltas: Sequence[ScopeDelta]) -> None:
        try:
            await self._client.start_workflow(
                SCOPE_WORKFLOW,
                id=scope_id,
                task_queue=activity.info().task_queue,
                task_timeout=TASK_TIMEOUT,
                start_signal=APPLY_SIGNAL,
                start_signal_args=[delta.model_dump(exclude_defaults=True) for delta in deltas],
                priority=Priority(fairness_key=ids.fairness_key(app)),
            )
        except RPCError as error:
            refused = error.status in (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED)
            final = refused and SIGNAL_LIMIT_REACHED not in str(error)
            raise activity_failure("scopes.failed", type(error).__name__, str(error), retry=not final) from None

    async def _wait_for_refusals(self, scope_id: str, deltas: Sequence[ScopeDelta]) -> list[RefusedDelta]:
        """Wait until the deltas appear in the scope's history. Return all deltas that the scope has refused recently.

        Raises:
            StoreFailed: They did not appear within `SEEN_WITHIN_S`.
        """
        last = {(id, delta.run): int(number) for delta in deltas for id, number in [delta.id.rsplit("/e", 1)]}
        waited, pause = 0.0, 0.02
        while True:
            fold = await self.scopes.read(scope_id)
            if all(fold.heard(*sender) >= number for sender, number in last.items()):
                return fold.refused
            if waited >= SEEN_WITHIN_S:
                raise StoreFailed(scope_id, f"it did not accept the writes within {SEEN_WITHIN_S:g} s")
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 2, 1.0)


def _refuse(deltas: Sequence[ScopeDelta], reason: str) -> list[RefusedDelta]:
    return [RefusedDelta(id=delta.id, reason=reason) for delta in deltas]


def _find_fault(prefix: str, delta: ScopeDelta) -> str:
    """Return the reason why the scope would refuse a delta in any state, or an empty string.

    The scope may not remember the sender of such a delta, so all activities that share the signal would wait in vain.
    """
    data = delta.encode()
    if len(data) > MAX_SCOPE_BYTES:
        return f"It has {len(data)} bytes; the limit is {MAX_SCOPE_BYTES}."
    fold = ScopeFold(prefix)
    fold.apply(APPLY_SIGNAL, [data])
    return fold.refused[0].reason if fold.refused else ""


def _size(delta: ScopeDelta) -> int:
    return len(encode(delta.model_dump()))


def _batch_deltas(deltas: Sequence[ScopeDelta]) -> Iterator[list[ScopeDelta]]:
    """Yield the deltas in batches, each small enough for one signal."""
    signal: list[ScopeDelta] = []
    size = 0
    for delta in deltas:
        delta_size = _size(delta)
        if signal and size + delta_size > MAX_SIGNAL_BYTES:
            yield signal
            signal, size = [], 0
        signal.append(delta)
        size += delta_size
    if signal:
        yield signal
