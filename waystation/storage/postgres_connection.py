"""Connections to PostgreSQL on which nothing waits without a limit.

A worker that is frozen or lost while it holds a row or a lock would otherwise stop all other workers, until TCP ends
its connection after two hours.
"""

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

_T = TypeVar("_T")
_HAS_TRANSACTION_TIMEOUT = 170_000
"""The first version of the server that limits a whole transaction."""


class LimitedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose transactions end within limits. Each limit is a multiple of `limit_s`."""

    limit_s = 0.0

    def limit_transaction(self, limit_s: float) -> None:
        """Set the limits of the current transaction. Call this first in each transaction.

        The settings are not those of the session, because poolers share sessions.
        """
        self.limit_s = limit_s
        limits = {
            # The server ends the connection of a client that is frozen or lost, and so releases its locks.
            "idle_in_transaction_session_timeout": limit_s,
            # Longer, so that a transaction that waits for a frozen client gets the lock.
            "lock_timeout": 1.5 * limit_s,
            "statement_timeout": 2 * limit_s,
        }
        if self.info.server_version >= _HAS_TRANSACTION_TIMEOUT:
            # Also applies while the server waits for the rest of a pipeline.
            limits["transaction_timeout"] = 6 * limit_s
        calls = (f"set_config('{name}', '{seconds * 1000:.0f}', true)" for name, seconds in limits.items())
        self.execute(f"SELECT {', '.join(calls)}".encode())

    def wait(self, gen: Generator[Any, Any, _T], *args: Any, **options: Any) -> _T:
        """Wait for the server's answer, but only for three times the limit.

        A proxy may accept what it is sent without forwarding it. Neither the server nor TCP notices that.
        """
        return super().wait(self._limit(gen, 3 * self.limit_s), *args, **options)

    def _limit(self, gen: Generator[Any, Any, _T], limit_s: float) -> Generator[Any, Any, _T]:
        ends = time.monotonic() + limit_s
        try:
            wanted = next(gen)
            while (ready := (yield wanted)) or time.monotonic() < ends:
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
        self.close()
        raise psycopg.OperationalError(f"the server did not answer within {limit_s:g} s")
