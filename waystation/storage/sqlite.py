"""Transactions in an SQLite file, for stores that the processes of one machine share."""

import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from waystation.core.errors import StoreFailed
from waystation.private_files import create_folder
from waystation.storage.store_places import describe_place

BUSY_TIMEOUT_S = 30.0
"""How long a transaction waits for those of other processes."""


class SqliteDatabase:
    """A file with the tables of one store. The file and the tables are created when first needed."""

    def __init__(self, path: str | Path, table: str, schema: Sequence[str]) -> None:
        """Set the file. `schema` lists the statements that create `table`, and others that are created with it."""
        self.path = Path(path).absolute()
        self.place = describe_place(self.path)
        self._table, self._schema = table, schema

    @contextmanager
    def transaction(self, *, writing: bool = True, erasing: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield a connection whose transaction is committed at the end of the block, or rolled back if it raises.

        With `erasing`, deleted content is also overwritten in unused parts of the file. Its write-ahead log is emptied
        unless another process is reading the file.

        Raises:
            StoreFailed: The file could not be read or written.
        """
        try:
            if not self.path.exists():
                create_folder(self.path.parent)
                # The content is private. SQLite creates its WAL and journal files with the same mode.
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            # Use one connection per transaction, so that none is shared between threads or left open.
            with closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as db:
                self._prepare(db)
                if erasing:
                    db.execute("PRAGMA secure_delete = ON")
                with db:
                    # With a plain BEGIN, a write after a read may fail immediately instead of waiting for the lock.
                    db.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
                    yield db
                if erasing:
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(str(self.path), f"{type(error).__name__}: {error}") from None

    def read_store_id(self, connection: sqlite3.Connection) -> str:
        """Return the ID of the file, which is its `user_version`. Create the ID if the file has none.

        Call this in a transaction that may write.
        """
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if not version:
            version = secrets.randbelow(2**31 - 1) + 1
            connection.execute(f"PRAGMA user_version = {version}")
        return f"{version:08x}"

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Configure a connection, and create the tables if the file is new."""
        if db.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            # This fails while another process has the file open. In that case, a later connection sets the mode.
            with suppress(sqlite3.OperationalError):
                db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (self._table,)).fetchone() is None:
            with db:
                db.execute("BEGIN IMMEDIATE")
                for statement in self._schema:
                    db.execute(statement)
