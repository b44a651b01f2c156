"""A memory service with full-text search in one SQLite file. Processes on the same machine can share the file."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from waystation.core import digest
from waystation.memory.stored_memory import StoredMemory, StoringMemoryService, fold, list_indexes, runs, spaced, terms
from waystation.storage import Owner, SqliteDatabase, find_cipher, read_sqlite_id

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
_OF_USER = "FROM memories WHERE app_name = ? AND user_id = ?"
_APPS = "SELECT DISTINCT app_name FROM memories WHERE user_id = ? ORDER BY app_name"


class SqliteMemoryService(StoringMemoryService):
    """Finds up to `max_results` memories that share words with the query, best match first.

    Matching ignores case and accents. In scripts that do not put spaces between words, it compares characters.
    """

    def __init__(self, path: str | Path, *, max_results: int = MAX_RESULTS) -> None:
        """Use the SQLite file at `path`, which is created when first needed."""
        self._database = SqliteDatabase(path, "words", _SCHEMA)
        self.path = self._database.path
        self._max_results = max_results

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return up to `max_results` memories that share words with `query`, best match first."""
        from waystation.memory.memory_entry import SearchMemoryResponse

        query_terms = terms(query[:MAX_QUERY_CHARS])[:MAX_TERMS]
        if not query_terms or not self._database.path.exists():
            return SearchMemoryResponse()
        scope = _scope(app_name, user_id)
        *digests, _ = list_indexes(scope, [fold(term) for term in query_terms])
        phrases = [*query_terms, *(" ".join(phrase) for index in digests for phrase in index)]
        # Quoting is safe: terms contain no quotation marks, and FTS5 does not interpret quoted text.
        words = " OR ".join(f'"{phrase}"' for phrase in phrases)
        match = f'scope : "{scope}" AND text : ({words})'

        def search(db: sqlite3.Connection) -> list[StoredMemory]:
            rows = db.execute(_SEARCH, (match, app_name, user_id, self._max_results))
            return [StoredMemory.decode(row[0]) for row in rows]

        memories = await self._do(search, writing=False)
        return SearchMemoryResponse(memories=[memory.entry() for memory in memories])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete one memory and its entry in the index."""
        if not memory_id or not self._database.path.exists():
            return

        def delete(db: sqlite3.Connection) -> None:
            key = (app_name, user_id, memory_id)
            where = "WHERE app_name = ? AND user_id = ? AND id = ?"
            db.execute(f"DELETE FROM words WHERE rowid = (SELECT number FROM memories {where})", key)
            db.execute(f"UPDATE memories SET memory = NULL {where}", key)

        await self._do(delete, writing=True)

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Delete the memories of one session, and their index entries. Return the number of deleted memories."""
        if not self._database.path.exists():
            return 0

        def delete(db: sqlite3.Connection) -> int:
            numbers = db.execute(_OF_SESSION, (app_name, user_id, session_id)).fetchall()
            db.executemany("DELETE FROM words WHERE rowid = ?", numbers)
            db.executemany("DELETE FROM memories WHERE number = ?", numbers)
            return len(numbers)

        return await self._do(delete, writing=True)

    async def list_user_apps(self, *, user_id: str) -> list[str]:
        """Return the names of the apps in which a user has memories."""
        if not self._database.path.exists():
            return []
        return await self._do(lambda db: [app for (app,) in db.execute(_APPS, [user_id])], writing=False)

    async def delete_user(self, *, app_name: str, user_id: str, dry_run: bool = False) -> int:
        """Delete all memories of a user in an app, also from unused parts of the file. Return their number.

        With `dry_run`, only count them.
        """
        key = app_name, user_id

        def delete() -> int:
            with self._database.transaction(erasing=not dry_run) as db:
                [count] = db.execute(f"SELECT COUNT(memory) {_OF_USER}", key).fetchone()
                if not dry_run:
                    db.execute(f"DELETE FROM words WHERE rowid IN (SELECT number {_OF_USER})", key)
                    db.execute(f"DELETE {_OF_USER}", key)
                    # Without this, the index would contain the deleted words until it is merged.
                    db.execute("INSERT INTO words (words) VALUES ('optimize')")
            return int(count)

        return await asyncio.to_thread(delete) if self._database.path.exists() else 0

    async def store_id(self) -> str | None:
        """Return the ID of the file, or "" if it does not exist yet."""
        return await self._do(read_sqlite_id, writing=True) if self._database.path.exists() else ""

    async def _add(self, app_name: str, user_id: str, memories: Sequence[StoredMemory]) -> None:
        if not memories:
            return
        scope = _scope(app_name, user_id)

        def add(db: sqlite3.Connection) -> None:
            for memory in memories:
                added = db.execute(_ADD, (app_name, user_id, memory.id, memory.encode(Owner(app_name, user_id))))
                if added.rowcount:
                    db.execute(_INDEX, (added.lastrowid, scope, _index(scope, memory.text[:MAX_INDEXED_CHARS])))

        await self._do(add, writing=True)

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, writing: bool) -> T:
        """Run `work` in a thread and in one transaction.

        Raises:
            StoreFailed: The file could not be read or written.
        """

        def transact() -> T:
            with self._database.transaction(writing=writing) as db:
                return work(db)

        return await asyncio.to_thread(transact)


def _index(scope: str, text: str) -> str:
    """Return the words of a text for the index: as they are or, if encryption is switched on, as digests."""
    if find_cipher() is None:
        return spaced(text)
    digests, *_ = list_indexes(scope, [fold(run) for run in runs(text)])
    return " ".join(itertools.chain.from_iterable(digests))


def _scope(app_name: str, user_id: str) -> str:
    """Return the word that identifies an app's user in the index."""
    return f"u{digest([app_name, user_id])[:32]}"
