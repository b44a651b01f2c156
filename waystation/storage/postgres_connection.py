"""Connections to PostgreSQL on which nothing waits without a limit.

A worker that is frozen or lost while it holds a row or a lock would otherwise stop all other workers, until TCP ends
its connection after two hours.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_T = TypeVar("_T")
_TRANSACTION_TIMEOUT_SINCE = 170_000


def create_conninfo(url: str, limit_s: float) -> str:
    """Return the connection string for a URL, with the limits that libpq and TCP enforce. Those in the URL win.

    Raises:
        psycopg.ProgrammingError: The URL is not valid.
    """
    probe_s = max(round(limit_s / 4), 1)
    defaults: dict[str, Any] = {
        "application_name": "waystation",
        "connect_timeout": max(round(limit_s), 2),  # libpq does not accept less
        "tcp_user_timeout": round(limit_s * 1000),
        "keepalives_idle": 2 * probe_s,
        "keepalives_interval": probe_s,
        "keepalives_count": 2,
    }
    return make_conninfo(**(defaults | conninfo_to_dict(url)))


class LimitedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose transactions end within limits, of which each is a multiple of `limit_s`."""

    limit_s = 0.0

    @classmethod
    @contextmanager
    def open(cls, conninfo: str, limit_s: float) -> Iterator[Self]:
        """Yield a connection. At the end, its transaction is committed, or rolled back if the block raises."""
        # Prepared statements fail behind poolers that share connections.
        with cls.connect(conninfo, prepare_threshold=None) as connection:
            connection.limit_s = limit_s
            yield connection

    def limit_transaction(self) -> None:
        """Set the server's limits for the current transaction. Call this first in each transaction.

        Settings of the session, or of the connection, would not work behind poolers that share connections.
        """
        limits = {
            # The server ends the connection of a client that is frozen or lost, and releases its locks.
            "idle_in_transaction_session_timeout": 1.0,
            # Longer, so that a transaction that waits for a frozen client gets the lock.
            "lock_timeout": 1.5,
            "statement_timeout": 2.0,
        }
        if self.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            limits["transaction_timeout"] = 6.0  # also for a client that is frozen between the parts of a statement
        calls = ", ".join(
            f"set_config('{name}', '{round(part * self.limit_s * 1000)}', true)" for name, part in limits.items()
        )
        self.execute(f"SELECT {calls}".encode())

    def wait(self, gen: Generator[Any, Any, _T], *args: Any, **options: Any) -> _T:
        """Wait for the server's answer, but only for three times the limit.

        A proxy may accept what it is sent without forwarding it. Neither the server nor TCP notices that.
        """
        return super().wait(self._limit(gen), *args, **options)

    def _limit(self, gen: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
        ends = time.monotonic() + 3 * self.limit_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > ends:
                    self.close()
                    raise psycopg.OperationalError(f"the server did not answer within {3 * self.limit_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # StopIteration is not generic
