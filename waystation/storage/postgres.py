"""Transactions in PostgreSQL, for stores that several machines share. Requires the extra `postgres`."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from waystation.core import StoreFailed
from waystation.storage.store_places import describe_place

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]

MAX_CONNECTIONS = 8
"""Maximum number of concurrent transactions of one store in a process. Further ones wait. A server accepts 100
connections by default, and a worker may run 100 tools at a time."""
CONNECT_TIMEOUT_S = 10
_SCHEMES = ("postgresql://", "postgres://")
_SECRETS = re.compile(r"(?<=://)\S*@|password=\S*|\?\S*", re.IGNORECASE)
"""Matches the user and password in a URL, a password setting, and a query string. Error messages show `…` instead."""
_SCHEMA_LOCK = 0x77617973746174
"""Key of the advisory lock for creating tables. Concurrent `CREATE TABLE IF NOT EXISTS` statements can fail."""


def is_postgres_url(place: str | Path) -> bool:
    """Return whether the location of a store is a PostgreSQL URL."""
    return str(place).startswith(_SCHEMES)


def _create_conninfo(url: str) -> str:
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError:
        problem = "PostgreSQL requires the extra `postgres`: pip install 'waystation[postgres]'."
        raise StoreFailed(describe_place(url), problem) from None
    defaults: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "waystation"}
    try:
        return make_conninfo(**(defaults | conninfo_to_dict(url)))
    except ProgrammingError as error:
        problem = f"the URL is not valid: {_SECRETS.sub('…', str(error))}"
        raise StoreFailed(describe_place(url), problem) from None


def _describe(error: psycopg.Error) -> str:
    """Return the kind and the first line of an error, without credentials."""
    cause = _SECRETS.sub("…", (str(error).splitlines() or [""])[0])
    return f"{type(error).__name__}: {cause[:300]}"


def find_postgres_problem(url: str | Path) -> str | None:
    """Return why a database cannot be reached or written to, or None. Do not create or change anything."""
    try:
        conninfo = _create_conninfo(str(url))
    except StoreFailed as error:
        return str(error)
    import psycopg

    try:
        with psycopg.connect(conninfo, prepare_threshold=None) as connection:
            is_read_only = connection.execute("SHOW transaction_read_only").fetchone() == ("on",)
    except psycopg.Error as error:
        return str(StoreFailed(describe_place(url), _describe(error)))
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
            StoreFailed: The URL is not valid, or psycopg is not installed.
        """
        self.place = describe_place(url)
        self._conninfo = _create_conninfo(url)
        # The table's comment is the store's ID, because it is copied with the table, for example to another server.
        self._schema = (*schema, f"COMMENT ON TABLE {table} IS '{secrets.token_hex(4)}'")
        self._table, self._is_ready = table, False
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection whose transaction is committed at the end of the block, or rolled back if it raises.

        Raises:
            StoreFailed: The server cannot be reached, or a statement failed.
        """
        with self._slots, self.unlimited_transaction() as connection:
            yield connection

    @contextmanager
    def unlimited_transaction(self) -> Iterator[Connection]:
        """Like `transaction`, but ignore `MAX_CONNECTIONS`. Use this for locks, which are held longer."""
        import psycopg

        try:
            # Prepared statements fail behind poolers that share connections.
            with psycopg.connect(self._conninfo, prepare_threshold=None) as connection:
                if not self._is_ready:
                    self.create_table(connection, self._table, self._schema)
                    connection.commit()
                    self._is_ready = True
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
