"""Read `user:` and `app:` state when an invocation begins, and deliver to it what the invocation writes."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from waystation.activities.activity_attempt import activity_failure, beating, failing_as
from waystation.activities.log_cache import LogCache
from waystation.core import (
    APPLY_SIGNAL,
    MAX_SCOPE_BYTES,
    SCOPE_WORKFLOW,
    USER,
    ForeignHistory,
    InvocationInput,
    JsonObject,
    Log,
    RefusedDelta,
    ScopeDelivery,
    ScopeDelta,
    ScopeNameTooLong,
    ScopeReport,
    StoreFailed,
    app_scope,
    encode,
    user_scope,
)
from waystation.history import ScopeReader
from waystation.storage.driver import inline

events = structlog.get_logger("waystation.activities")

MAX_SIGNAL_BYTES = 1_000_000
SEEN_WITHIN_S = 15.0
"""How long to wait until a signal stands in the history: the server holds it back while a workflow task runs, for up to
10 s when the worker that runs it was lost."""


class ReadsScopes(Protocol):
    """Where model calls have `user:` and `app:` state from when an invocation begins."""

    async def read(self, started: InvocationInput) -> JsonObject:
        """Return what the user's and the app's state hold, with their prefixes."""


class ScopeKeeper:
    """Reads the scopes of an invocation, and carries out the activity `apply_scopes`."""

    def __init__(self, client: Client, logs: LogCache) -> None:
        self._logs = logs
        # State is the fold of these signals for whoever reads it, with whatever store; each fits into a history.
        self._client = inline(client)
        self.scopes = ScopeReader(client)

    async def read(self, started: InvocationInput) -> JsonObject:
        """Return what the user's and the app's state hold, with their prefixes.

        Raises:
            ScopeNameTooLong: The names do not fit into an id.
            ForeignHistory: Something else is kept under the id.
        """
        ids = app_scope(started.app), user_scope(started.app, started.user_id)
        app, user = await asyncio.gather(*map(self.scopes.read, ids))
        return {**app.state, **user.state}

    async def apply(self, params: ScopeDelivery) -> bytes:
        """Return an encoded `ScopeReport`.

        Raises:
            ApplicationError: The server refuses what is sent, or another attempt may succeed.
        """
        info = activity.info()
        run = info.workflow_run_id or ""
        # Beating, so that the workflow learns soon when this process is lost.
        with beating(), failing_as("scopes.failed"):
            log = await self._logs.at(info.workflow_id or "", run, params)
            refused = await self._deliver(log, run, params.after, params.last)
        return ScopeReport(refused=tuple(refused)).encode()

    async def deliver_rest(self, log: Log, run: str) -> None:
        """Deliver what an invocation wrote and did not deliver: one that was terminated cannot.

        Raises:
            ApplicationError: The server refuses what is sent.
            StoreFailed: A scope did not take it in time.
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
        events.info("scopes.told", invocation_id=log.invocation_id, deltas=len(deltas), refused=len(refused), last=last)
        return refused

    async def _deliver_to(self, prefix: str, log: Log, deltas: Sequence[ScopeDelta]) -> list[RefusedDelta]:
        started = log.state.input
        assert started is not None
        try:
            scope_id = user_scope(started.app, started.user_id) if prefix == USER else app_scope(started.app)
        except ScopeNameTooLong as error:
            return _refuse(deltas, str(error))
        sizes = [(delta, len(delta.encode())) for delta in deltas]
        fitting = [delta for delta, size in sizes if size <= MAX_SCOPE_BYTES]
        refused = [
            RefusedDelta(id=delta.id, reason=f"It is {size} bytes; at most {MAX_SCOPE_BYTES} are kept.")
            for delta, size in sizes
            if size > MAX_SCOPE_BYTES
        ]
        for signal in _signals(fitting):
            await self._send(scope_id, signal)
        try:
            return [*refused, *(await self._refused(scope_id, log, fitting))] if fitting else refused
        except ForeignHistory as error:
            return [*refused, *_refuse(fitting, str(error))]

    async def _send(self, scope_id: str, deltas: Sequence[ScopeDelta]) -> None:
        try:
            await self._client.start_workflow(
                SCOPE_WORKFLOW,
                id=scope_id,
                task_queue=activity.info().task_queue,
                start_signal=APPLY_SIGNAL,
                start_signal_args=[delta.model_dump(exclude_defaults=True) for delta in deltas],
            )
        except RPCError as error:
            final = error.status in (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED)
            raise activity_failure("scopes.failed", type(error).__name__, str(error), retry=not final) from None

    async def _refused(self, scope_id: str, log: Log, deltas: Sequence[ScopeDelta]) -> list[RefusedDelta]:
        """Wait until the deltas stand in the scope's history; return those that do not count there."""
        last, teller = int(deltas[-1].id.rpartition("/e")[2]), (log.invocation_id, deltas[-1].run)
        names = {(delta.id, delta.run) for delta in deltas}
        waited, pause = 0.0, 0.02
        while (fold := await self.scopes.read(scope_id)).heard(*teller) < last and waited < SEEN_WITHIN_S:
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 2, 1.0)
        if fold.heard(*teller) < last:
            raise StoreFailed(scope_id, f"it did not take what was sent within {SEEN_WITHIN_S:g} s")
        return [refused for refused in fold.refused if (refused.id, refused.run) in names]


def _refuse(deltas: Sequence[ScopeDelta], reason: str) -> list[RefusedDelta]:
    return [RefusedDelta(id=delta.id, reason=reason) for delta in deltas]


def _signals(deltas: Sequence[ScopeDelta]) -> Iterator[list[ScopeDelta]]:
    """Yield the deltas in lists that fit into one signal."""
    signal: list[ScopeDelta] = []
    size = 0
    for delta in deltas:
        own = len(encode(delta.model_dump()))
        if signal and size + own > MAX_SIGNAL_BYTES:
            yield signal
            signal, size = [], 0
        signal.append(delta)
        size += own
    if signal:
        yield signal
