"""Transactions in PostgreSQL, for stores that several machines share. Requires the extra `postgres`."""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from waystation.core.errors import StoreFailed
from waystation.storage.store_places import describe_place

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from waystation.storage.postgres_connection import LimitedConnection

    Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]

MAX_CONNECTIONS = 8
"""Maximum number of concurrent transactions of one store in a process. Further ones wait. A server accepts 100
connections by default, and a worker may run 100 tools at a time."""
LIMIT_VARIABLE = "WAYSTATION_POSTGRES_LIMIT"
"""Environment variable with the number of seconds from which all limits of connections are derived."""
LIMIT_S = 10.0
MIN_LIMIT_S, MAX_LIMIT_S = 0.1, 3_600.0
HELD_LIMITS = 4
"""The limits of a lock that is held while a token is refreshed are this many times longer. A refresh usually sends up
to two requests, and each may take 10 s to connect and 10 s to answer."""
_SCHEMES = ("postgresql://", "postgres://")
_SECRETS = re.compile(r"(?<=://)\S*@|password=\S*|\?\S*", re.IGNORECASE)
"""Matches the user and password in a URL, a password setting, and a query string. Error messages show `…` instead."""
_LIMIT_STATES = ("25P03", "25P04", "55P03", "57014")
"""The SQLSTATE codes of errors with which the server enforces a limit."""
_SCHEMA_LOCK = 0x77617973746174
"""Key of the advisory lock for creating tables. Concurrent `CREATE TABLE IF NOT EXISTS` statements can fail."""


def is_postgres_url(place: str | Path) -> bool:
    """Return whether the location of a store is a PostgreSQL URL."""
    return str(place).startswith(_SCHEMES)


def _read_limit(place: str) -> float:
    """Return the limit that `LIMIT_VARIABLE` sets, or else the default.

    Raises:
        StoreFailed: The limit is not valid.
    """
    text = os.environ.get(LIMIT_VARIABLE) or str(LIMIT_S)
    with suppress(ValueError):
        if MIN_LIMIT_S <= (limit_s := float(text)) <= MAX_LIMIT_S:
            return limit_s
    raise StoreFailed(place, f"{LIMIT_VARIABLE} is {text!r}; set it to {MIN_LIMIT_S:g} to {MAX_LIMIT_S:g} seconds.")


def _create_conninfo(url: str, limit_s: float) -> str:
    """Return the connection string for a URL, with the limits that libpq and TCP enforce. Those in the URL win."""
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError:
        problem = "PostgreSQL requires the extra `postgres`: pip install 'waystation[postgres]'."
        raise StoreFailed(describe_place(url), problem) from None
    probe_s = max(round(limit_s / 4), 1)
    defaults: dict[str, Any] = {
        "application_name": "waystation",
        "connect_timeout": max(round(limit_s), 2),  # libpq does not accept less
        "tcp_user_timeout": round(limit_s * 1000),
        "keepalives_idle": 2 * probe_s,
        "keepalives_interval": probe_s,
        "keepalives_count": 2,
    }
    try:
        return make_conninfo(**(defaults | conninfo_to_dict(url)))
    except ProgrammingError as error:
        problem = f"the URL is not valid: {_SECRETS.sub('…', str(error))}"
        raise StoreFailed(describe_place(url), problem) from None


def _describe(error: psycopg.Error) -> str:
    """Return the kind and the first line of an error, without credentials."""
    cause = _SECRETS.sub("…", (str(error).splitlines() or [""])[0])
    remedy = (
        f". Another process may hold a lock. {LIMIT_VARIABLE} sets the limit" if error.sqlstate in _LIMIT_STATES else ""
    )
    return f"{type(error).__name__}: {cause[:300]}{remedy}"


def find_postgres_problem(url: str | Path) -> str | None:
    """Return why a database cannot be reached or written to, or None. Do not create or change anything."""
    try:
        with PostgresDatabase(str(url), "", ()).connect() as connection:
            is_read_only = connection.execute("SHOW transaction_read_only").fetchone() == ("on",)
    except StoreFailed as error:
        return str(error)
    problem = "the server accepts no changes. Use the primary server instead of a standby."
    return str(StoreFailed(describe_place(url), problem)) if is_read_only else None


class PostgresDatabase:
    """A database with the tables of one store, which are created when first needed.

    Each transaction opens a new connection, so it also works right after the server was restarted or replaced.
    """

    def __init__(self, url: str, table: str, schema: Sequence[str]) -> None:
        """Use the database at `url`, a libpq URL. `schema` lists the statements that create `table` and its indexes.

        libpq also reads its environment variables, such as `PGPASSWORD`, and its password file.

        Raises:
            StoreFailed: The URL or the limit is not valid, or psycopg is not installed.
        """
        self.place = describe_place(url)
        self._limit_s = _read_limit(self.place)
        self._conninfo = _create_conninfo(url, self._limit_s)
        # The table's comment is the store's ID, because it is copied with the table, for example to another server.
        self._schema = (*schema, f"COMMENT ON TABLE {table} IS '{secrets.token_hex(4)}'")
        self._table, self._is_ready = table, False
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection whose transaction is committed at the end of the block, or rolled back if it raises.

        Raises:
            StoreFailed: The server cannot be reached, a statement failed, or a limit was exceeded.
        """
        if not self._slots.acquire(timeout=HELD_LIMITS * self._limit_s):
            raise StoreFailed(self.place, f"all {MAX_CONNECTIONS} connections of this process are in use.")
        try:
            with self.connect() as connection:
                if not self._is_ready:
                    self.create_table(connection, self._table, self._schema)
                    connection.commit()
                    self._is_ready = True
                    connection.limit_transaction(self._limit_s)
                yield connection
        finally:
            self._slots.release()

    @contextmanager
    def lock(self, key: int) -> Iterator[None]:
        """Hold an advisory lock, which the server releases if this process is lost or frozen.

        The connection does not count toward `MAX_CONNECTIONS`, because locks are held longer.
        """
        with self.connect(HELD_LIMITS) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [key])
            yield

    @contextmanager
    def connect(self, limits: int = 1) -> Iterator[LimitedConnection]:
        """Yield a connection whose limits are `limits` times as long, for one transaction without the store's tables.

        Raises:
            StoreFailed: As for `transaction`.
        """
        import psycopg

        from waystation.storage.postgres_connection import LimitedConnection

        try:
            # Prepared statements fail behind poolers that share connections.
            with LimitedConnection.connect(self._conninfo, prepare_threshold=None) as connection:
                connection.limit_transaction(limits * self._limit_s)
                yield connection
        except psycopg.Error as error:
            raise StoreFailed(self.place, _describe(error)) from None

    def read_store_id(self, connection: Connection) -> str | None:
        """Return the store's ID, which is the comment on its table, or None if the comment or the table was removed."""
        row = connection.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", [self._table]).fetchone()
        return str(row[0]) if row and row[0] else None

    def create_table(self, connection: Connection, table: str, statements: Sequence[str]) -> None:
        """Run the statements that create a table and its indexes, unless the table exists.

        An account that may not create tables can use existing ones.
        """
        if self._exists(connection, table):
            return
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SCHEMA_LOCK])
        for statement in () if self._exists(connection, table) else statements:
            connection.execute(statement.encode())

    def _exists(self, connection: Connection, table: str) -> bool:
        return connection.execute("SELECT to_regclass(%s)", [table]).fetchone() != (None,)
