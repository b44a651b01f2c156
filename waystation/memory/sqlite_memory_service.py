"""A memory service with full-text search in one SQLite file. Processes on the same machine can share the file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from waystation.core.payload import digest
from waystation.memory.stored_memory import StoredMemory, StoringMemoryService, fold, list_indexes, runs, spaced, terms
from waystation.storage import Owner, Row, SqlTable, Transaction, find_cipher

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
_DELETE = (
    """DELETE FROM words WHERE rowid = (
    SELECT number FROM memories WHERE app_name = ? AND user_id = ? AND id = ?
)""",
    "UPDATE memories SET memory = NULL WHERE app_name = ? AND user_id = ? AND id = ?",
)
_OF_USER = "FROM memories WHERE app_name = ? AND user_id = ?"
_APPS = "SELECT DISTINCT app_name FROM memories WHERE user_id = ? ORDER BY app_name"


class SqliteMemoryService(StoringMemoryService):
    """Finds up to `max_results` memories that share words with the query, best match first.

    Matching ignores case and accents. In scripts that do not put spaces between words, it compares characters.
    """

    def __init__(self, path: str | Path, *, max_results: int = MAX_RESULTS) -> None:
        """Use the SQLite file at `path`, which is created when first needed."""
        self.path = Path(path).absolute()
        self._table = SqlTable.at(self.path, "words", _SCHEMA)
        self._max_results = max_results

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return up to `max_results` memories that share words with `query`, best match first."""
        from waystation.memory.memory_entry import SearchMemoryResponse

        query_terms = terms(query[:MAX_QUERY_CHARS])[:MAX_TERMS]
        if not query_terms:
            return SearchMemoryResponse()
        scope = _scope(app_name, user_id)
        *digests, _ = list_indexes(scope, [fold(term) for term in query_terms])
        phrases = [*query_terms, *(" ".join(phrase) for index in digests for phrase in index)]
        # Quoting is safe: terms contain no quotation marks, and FTS5 does not interpret quoted text.
        words = " OR ".join(f'"{phrase}"' for phrase in phrases)
        match = f'scope : "{scope}" AND text : ({words})'

        def search(db: Transaction) -> list[StoredMemory]:
            # Decode in the thread, too, because decryption may read the store of user keys.
            return [StoredMemory.decode(row[0]) for row in db.run(_SEARCH, match, app_name, user_id, self._max_results)]

        memories = await self._do(search, list[StoredMemory](), writing=False)
        return SearchMemoryResponse(memories=[memory.entry() for memory in memories])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete one memory and its entry in the index."""

        def delete(db: Transaction) -> None:
            for statement in _DELETE:
                db.run(statement, app_name, user_id, memory_id)

        if memory_id:
            await self._do(delete, None)

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Delete the memories of one session, and their index entries. Return the number of deleted memories."""

        def delete(db: Transaction) -> int:
            numbers = db.run(_OF_SESSION, app_name, user_id, session_id)
            for (number,) in numbers:
                db.run("DELETE FROM words WHERE rowid = ?", number)
                db.run("DELETE FROM memories WHERE number = ?", number)
            return len(numbers)

        return await self._do(delete, 0)

    async def list_user_apps(self, *, user_id: str) -> list[str]:
        """Return the names of the apps in which a user has memories."""
        return [app for (app,) in await self._do(lambda db: db.run(_APPS, user_id), list[Row](), writing=False)]

    async def delete_user(self, *, app_name: str, user_id: str, dry_run: bool = False) -> int:
        """Delete all memories of a user in an app, also from unused parts of the file. Return their number.

        With `dry_run`, only count them.
        """
        key = app_name, user_id

        def delete(db: Transaction) -> int:
            [(count,)] = db.run(f"SELECT COUNT(memory) {_OF_USER}", *key)
            if not dry_run:
                db.run(f"DELETE FROM words WHERE rowid IN (SELECT number {_OF_USER})", *key)
                db.run(f"DELETE {_OF_USER}", *key)
                # Without this, the index would contain the deleted words until it is merged.
                db.run("INSERT INTO words (words) VALUES ('optimize')")
            return int(count)

        return await self._do(delete, 0, erasing=not dry_run)

    async def store_id(self) -> str | None:
        """Return the ID of the file, or "" if it does not exist yet."""
        return await self._table.store_id()

    async def _add(self, app_name: str, user_id: str, memories: Sequence[StoredMemory]) -> None:
        if not memories:
            return
        scope = _scope(app_name, user_id)

        def add(db: Transaction) -> None:
            for memory in memories:
                added = db.execute(_ADD, app_name, user_id, memory.id, memory.encode(Owner(app_name, user_id)))
                if added.rowcount:
                    db.run(_INDEX, added.lastrowid, scope, _index(scope, memory.text[:MAX_INDEXED_CHARS]))

        await self._table.do(add)

    async def _do(
        self, work: Callable[[Transaction], T], otherwise: T, *, writing: bool = True, erasing: bool = False
    ) -> T:
        """Do work in one transaction, or return `otherwise` if the file does not exist yet."""
        return await self._table.do(work, writing=writing, erasing=erasing) if self._table.exists() else otherwise


def _index(scope: str, text: str) -> str:
    """Return the words of a text for the index: as they are or, if encryption is switched on, as digests."""
    if find_cipher() is None:
        return spaced(text)
    digests, *_ = list_indexes(scope, [fold(run) for run in runs(text)])
    return " ".join(itertools.chain.from_iterable(digests))


def _scope(app_name: str, user_id: str) -> str:
    """Return the word that identifies an app's user in the index."""
    return f"u{digest([app_name, user_id])[:32]}"
