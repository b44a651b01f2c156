"""Read scopes when an invocation begins, and tell them what its events wrote."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.view import Views
from waystation.core.errors import ForeignHistory, ScopeNameTooLong, StoreFailed
from waystation.core.log import Log
from waystation.core.payload import JsonObject, encode
from waystation.core.scope import (
    APPLY_SIGNAL,
    DELIVERY_ACTIVITY,
    MAX_SCOPE_BYTES,
    USER,
    WORKFLOW,
    RefusedDelta,
    ScopeDelivery,
    ScopeDelta,
    ScopeReport,
    app_scope,
    user_scope,
)
from waystation.core.wire import InvocationInput
from waystation.scopes import Scopes
from workflows.ports import data_of, raw

events = structlog.get_logger("waystation.activities")

MAX_SIGNAL_BYTES = 1_000_000
SEEN_WITHIN_S = 15.0
"""How long to wait until a signal stands in the history: the server holds it back while a workflow task runs, for up to
10 s when the worker that runs it was lost."""


class ScopeKeeper:
    """Reads the scopes of an invocation, and carries out the activity `apply_scopes`."""

    def __init__(self, client: Client, views: Views) -> None:
        self._client, self._views = client, views
        self.scopes = Scopes(client)

    async def read(self, started: InvocationInput) -> JsonObject:
        """Return what the user's and the app's state hold, with their prefixes.

        Raises:
            ScopeNameTooLong: The names do not fit into an id.
            ForeignHistory: Something else is kept under the id.
        """
        ids = app_scope(started.app), user_scope(started.app, started.user_id)
        app, user = await asyncio.gather(*map(self.scopes.read, ids))
        return {**app.state, **user.state}

    @activity.defn(name=DELIVERY_ACTIVITY)
    async def apply(self, data: RawValue) -> RawValue:
        """Take a `ScopeDelivery`, return a `ScopeReport`.

        Raises:
            ApplicationError: The server refuses what is sent, or another attempt may succeed.
        """
        given = ScopeDelivery.model_validate_json(data_of(data.payload))
        info = activity.info()
        try:
            log = await self._views.at(info.workflow_id or "", info.workflow_run_id or "", given)
        except ForeignHistory as error:
            raise _failed(error) from None
        refused: list[RefusedDelta] = []
        deltas = log.scope_deltas(given.after, given.last)
        for prefix in dict.fromkeys(prefix for prefix, _ in deltas):
            of_scope = [delta for found, delta in deltas if found == prefix]
            refused.extend(await self._tell(log, prefix, of_scope, info.task_queue))
        for delta in refused:
            events.warning("scope_delta.refused", delta=delta.id, reason=delta.reason, invocation_id=log.invocation_id)
        events.info(
            "scopes.told", invocation_id=log.invocation_id, deltas=len(deltas), refused=len(refused), last=given.last
        )
        return raw(ScopeReport(refused=tuple(refused)).encode())

    async def _tell(
        self, log: Log, prefix: str, deltas: Sequence[ScopeDelta], task_queue: str
    ) -> Iterable[RefusedDelta]:
        started = log.input
        assert started is not None
        try:
            scope_id = user_scope(started.app, started.user_id) if prefix == USER else app_scope(started.app)
        except ScopeNameTooLong as error:
            return [RefusedDelta(id=delta.id, reason=str(error)) for delta in deltas]
        large = [delta for delta in deltas if len(delta.encode()) > MAX_SCOPE_BYTES]
        fitting = [delta for delta in deltas if delta not in large]
        for signal in _signals(fitting):
            await self._send(scope_id, signal, task_queue)
        refused = [
            RefusedDelta(id=delta.id, reason=f"It is {len(delta.encode())} bytes; at most {MAX_SCOPE_BYTES} are kept.")
            for delta in large
        ]
        try:
            return [*refused, *(await self._refused(scope_id, log, fitting))] if fitting else refused
        except ForeignHistory as error:
            return [*refused, *(RefusedDelta(id=delta.id, reason=str(error)) for delta in fitting)]

    async def _send(self, scope_id: str, deltas: Sequence[ScopeDelta], task_queue: str) -> None:
        try:
            await self._client.start_workflow(
                WORKFLOW,
                id=scope_id,
                task_queue=task_queue,
                start_signal=APPLY_SIGNAL,
                start_signal_args=[delta.model_dump(exclude_defaults=True) for delta in deltas],
            )
        except RPCError as error:
            final = error.status in (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED)
            raise _failed(error, retry=not final) from None

    async def _refused(self, scope_id: str, log: Log, deltas: Sequence[ScopeDelta]) -> list[RefusedDelta]:
        """Wait until the deltas stand in the scope's history; return those that do not count there."""
        last = int(deltas[-1].id.rpartition("/e")[2])
        names = {delta.id for delta in deltas}
        waited, pause = 0.0, 0.02
        while (fold := await self.scopes.read(scope_id)).heard(log.invocation_id) < last and waited < SEEN_WITHIN_S:
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 2, 1.0)
        if fold.heard(log.invocation_id) < last:
            raise _failed(
                StoreFailed(scope_id, f"it did not take what was sent within {SEEN_WITHIN_S:g} s"), retry=True
            )
        return [refused for refused in fold.refused if refused.id in names]


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


def _failed(error: Exception, *, retry: bool = False) -> ApplicationError:
    """Log a failed attempt and return how Temporal is told."""
    events.warning("scopes.failed", error_type=type(error).__name__, attempt=activity.info().attempt, retry=retry)
    return ApplicationError(
        str(error)[:500],
        type=type(error).__name__,
        non_retryable=not retry,
        category=ApplicationErrorCategory.BENIGN,
    )
