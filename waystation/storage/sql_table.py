"""The tables of one store, in an SQLite file or in PostgreSQL, which run the same statements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

from waystation.storage.postgres import PostgresDatabase, is_postgres_url
from waystation.storage.sqlite import SqliteDatabase

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction in a database of either kind."""

    connection: Any
    """The connection of the database's own library."""
    is_postgres: bool

    def execute(self, statement: str, *params: object) -> Any:
        """Execute a statement whose placeholders are `?`, and return the library's cursor."""
        return self.connection.execute(statement.replace("?", "%s").encode() if self.is_postgres else statement, params)

    def run(self, statement: str, *params: object) -> list[Row]:
        """Execute a statement whose placeholders are `?`, and return its rows, if it has any."""
        cursor = self.execute(statement, *params)
        return list(cursor.fetchall()) if cursor.description else []


class SqlTable:
    """The tables of one store. They are created when first needed.

    All methods raise StoreFailed if the store is not available.
    """

    def __init__(self, database: SqliteDatabase | PostgresDatabase) -> None:
        self._database, self.place = database, database.place
        self.is_postgres = isinstance(database, PostgresDatabase)

    @classmethod
    def at(cls, place: str | Path, table: str, schema: Sequence[str]) -> Self:
        """Return the tables in the SQLite file or the PostgreSQL database at a place; see `SqliteDatabase`.

        Raises:
            StoreFailed: The URL is not valid, or the extra `postgres` is missing.
        """
        return cls((PostgresDatabase if is_postgres_url(place) else SqliteDatabase)(str(place), table, schema))

    @contextmanager
    def transaction(self, *, writing: bool = True, erasing: bool = False) -> Iterator[Transaction]:
        """Yield a transaction, which is committed at the end of the block, or rolled back if it raises.

        The options are those of `SqliteDatabase.transaction`. PostgreSQL needs none.
        """
        options = {} if self.is_postgres else {"writing": writing, "erasing": erasing}
        with self._database.transaction(**options) as connection:
            yield Transaction(connection, self.is_postgres)

    async def do(self, work: Callable[[Transaction], T], *, writing: bool = True, erasing: bool = False) -> T:
        """Return what `work` returns. It runs in a thread and in one transaction."""

        def transact() -> T:
            with self.transaction(writing=writing, erasing=erasing) as db:
                return work(db)

        return await asyncio.to_thread(transact)

    def exists(self) -> bool:
        """Return whether the store has been used. A database of a server counts as used."""
        return not isinstance(self._database, SqliteDatabase) or self._database.path.exists()

    async def store_id(self) -> str | None:
        """Return the ID of the store, "" for a file that does not exist yet, or None if the ID was removed."""
        return await self.do(lambda db: self._database.read_store_id(db.connection)) if self.exists() else ""
