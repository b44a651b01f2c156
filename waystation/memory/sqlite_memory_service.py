"""A memory service with full-text search in one SQLite file. Processes on the same machine can share the file."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from waystation.core import StoreFailed, digest
from waystation.memory.stored_memory import StoredMemory, StoringMemoryService, spaced, terms
from waystation.storage import read_sqlite_id

if TYPE_CHECKING:
    from waystation.memory.memory_entry import SearchMemoryResponse

T = TypeVar("T")

MAX_RESULTS = 10
MAX_QUERY_CHARS = 10_000
MAX_TERMS = 64
"""Maximum number of search terms. Further terms are ignored: a query may be a whole message, and SQLite limits the
depth of expressions.
"""
MAX_INDEXED_CHARS = 200_000
BUSY_TIMEOUT_S = 30.0

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS memories (
    number INTEGER PRIMARY KEY,
    app_name TEXT NOT NULL,
    user_id TEXT NOT NULL,
    id TEXT NOT NULL,
    memory TEXT,  -- NULL once deleted, so that adding its session again does not restore it
    UNIQUE (app_name, user_id, id)
)""",
    "CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (scope, text, tokenize = 'unicode61 remove_diacritics 2')",
)
_ADD = "INSERT INTO memories (app_name, user_id, id, memory) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_INDEX = "INSERT INTO words (rowid, scope, text) VALUES (?, ?, ?)"
# The index includes the scope so that a search reads only one user's words. The query also checks the table's columns,
# because user isolation must not depend on a digest. The scope has no weight in the ranking.
_SEARCH = """
SELECT memory FROM words JOIN memories ON number = words.rowid
WHERE words MATCH ? AND app_name = ? AND user_id = ? AND memory IS NOT NULL
ORDER BY bm25(words, 0.0, 1.0), number LIMIT ?
"""
# The table's unique key narrows this down to one user's memories. The query is rare, so it has no separate index.
_OF_SESSION = """
SELECT number FROM memories
WHERE app_name = ? AND user_id = ? AND json_extract(memory, '$.session_id') = ?
"""


class SqliteMemoryService(StoringMemoryService):
    """Finds up to `max_results` memories that share words with the query, best match first.

    Matching ignores case and accents. In scripts that do not put spaces between words, it compares characters.
    """

    def __init__(self, path: str | Path, *, max_results: int = MAX_RESULTS) -> None:
        """Use the SQLite file at `path`, which is created when first needed."""
        self._path = Path(path).absolute()
        self._max_results = max_results

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return up to `max_results` memories that share words with `query`, best match first."""
        from waystation.memory.memory_entry import SearchMemoryResponse

        query_terms = terms(query[:MAX_QUERY_CHARS])[:MAX_TERMS]
        if not query_terms or not self._path.exists():
            return SearchMemoryResponse()
        # Quoting is safe: terms contain no quotation marks, and FTS5 does not interpret quoted text.
        words = " OR ".join(f'"{term}"' for term in query_terms)
        match = f'scope : "{_scope(app_name, user_id)}" AND text : ({words})'

        def search(db: sqlite3.Connection) -> list[StoredMemory]:
            rows = db.execute(_SEARCH, (match, app_name, user_id, self._max_results))
            return [StoredMemory(**json.loads(row[0])) for row in rows]

        memories = await self._do(search, writing=False)
        return SearchMemoryResponse(memories=[memory.entry() for memory in memories])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete one memory and its entry in the index."""
        if not memory_id or not self._path.exists():
            return

        def delete(db: sqlite3.Connection) -> None:
            key = (app_name, user_id, memory_id)
            where = "WHERE app_name = ? AND user_id = ? AND id = ?"
            db.execute(f"DELETE FROM words WHERE rowid = (SELECT number FROM memories {where})", key)
            db.execute(f"UPDATE memories SET memory = NULL {where}", key)

        await self._do(delete, writing=True)

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Delete the memories of one session, and their index entries. Return the number of deleted memories."""
        if not self._path.exists():
            return 0

        def delete(db: sqlite3.Connection) -> int:
            numbers = db.execute(_OF_SESSION, (app_name, user_id, session_id)).fetchall()
            db.executemany("DELETE FROM words WHERE rowid = ?", numbers)
            db.executemany("DELETE FROM memories WHERE number = ?", numbers)
            return len(numbers)

        return await self._do(delete, writing=True)

    async def store_id(self) -> str | None:
        """Return the ID of the file, or "" if it does not exist yet."""
        return await self._do(read_sqlite_id, writing=True) if self._path.exists() else ""

    async def _add(self, app_name: str, user_id: str, memories: Sequence[StoredMemory]) -> None:
        if not memories:
            return
        scope = _scope(app_name, user_id)

        def add(db: sqlite3.Connection) -> None:
            for memory in memories:
                added = db.execute(_ADD, (app_name, user_id, memory.id, json.dumps(asdict(memory))))
                if added.rowcount:
                    db.execute(_INDEX, (added.lastrowid, scope, spaced(memory.text[:MAX_INDEXED_CHARS])))

        await self._do(add, writing=True)

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, writing: bool) -> T:
        """Run `work` in a thread and in one transaction.

        Raises:
            StoreFailed: The file could not be read or written.
        """
        try:
            return await asyncio.to_thread(self._transact, work, writing)
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(str(self._path), f"{type(error).__name__}: {error}") from None

    def _transact(self, work: Callable[[sqlite3.Connection], T], writing: bool) -> T:
        if not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Conversations are private. SQLite creates its WAL and journal files with the same mode.
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        # Use one connection per transaction, so that none is shared between threads or left open.
        with closing(sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as db:
            _prepare(db)
            with db:
                # With a plain BEGIN, a write after a read may fail immediately instead of waiting for the lock.
                db.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
                return work(db)


def _prepare(db: sqlite3.Connection) -> None:
    """Configure a connection, and create the tables if the file is new."""
    if db.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        # This fails while another process has the file open. In that case, a later connection sets the mode.
        with suppress(sqlite3.OperationalError):
            db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone() is None:
        with db:
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                db.execute(statement)


def _scope(app_name: str, user_id: str) -> str:
    """Return the word that identifies an app's user in the index."""
    return f"u{digest([app_name, user_id])[:32]}"
