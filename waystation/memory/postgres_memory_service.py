"""A memory service with full-text and optional vector search in PostgreSQL, which several machines can share."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog

from waystation.core.payload import digest
from waystation.memory.sqlite_memory_service import MAX_QUERY_CHARS, MAX_RESULTS, MAX_TERMS
from waystation.memory.stored_memory import StoredMemory, StoringMemoryService, fold, list_indexes, runs, terms
from waystation.storage import Owner, PostgresDatabase, SqlTable, Transaction

if TYPE_CHECKING:
    from waystation.memory.memory_entry import SearchMemoryResponse

log = structlog.get_logger("waystation.memory")

Embed: TypeAlias = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Returns one vector for each text. All vectors have the same length."""

MAX_DISTANCE = 0.6
"""Default for the maximum cosine distance between a query and a memory that a vector search finds."""
MAX_INDEXED_CHARS = 100_000
"""The rest of a longer memory is not searched. PostgreSQL limits the words of one memory to 1 MB."""
MAX_WORD_CHARS = 500
"""Longer words are cut. PostgreSQL limits a word to 2,046 bytes."""
_MAX_POSITIONS = 255
"""PostgreSQL keeps at most 255 positions of a word."""
_RANK_OFFSET = 60
"""The constant of reciprocal rank fusion. Larger values give less weight to the first results of each search."""
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS waystation_memories (
    number BIGINT GENERATED ALWAYS AS IDENTITY,
    key TEXT PRIMARY KEY,  -- digest of the app, the user and the memory's ID
    app_name TEXT NOT NULL,
    user_id TEXT NOT NULL,
    session_id TEXT,
    memory TEXT,  -- NULL once deleted, so that adding its session again does not restore it
    words TSVECTOR
)""",
    "CREATE INDEX IF NOT EXISTS waystation_memories_words ON waystation_memories USING gin (words)",
)
_VECTORS = """CREATE TABLE IF NOT EXISTS waystation_memory_vectors (
    key TEXT PRIMARY KEY REFERENCES waystation_memories ON DELETE CASCADE,
    embedding VECTOR NOT NULL
)"""
_ADD = """
INSERT INTO waystation_memories (key, app_name, user_id, session_id, memory, words)
VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
# The index includes a word for the user so that a search reads only that user's entries. Queries also check the
# columns, because user isolation must not depend on a digest.
_OWNED = "words @@ %(words)s::tsquery AND app_name = %(app)s AND user_id = %(user)s AND memory IS NOT NULL"
_SEARCH = f"""
SELECT key, memory FROM waystation_memories WHERE {_OWNED}
ORDER BY ts_rank(words, %(query)s::tsquery) DESC, number LIMIT %(limit)s
"""
# CASE, because vectors of different lengths, for example from an earlier embedding model, cannot be compared.
_NEAREST = f"""
SELECT key, memory FROM waystation_memories JOIN waystation_memory_vectors USING (key)
CROSS JOIN LATERAL (
    SELECT CASE vector_dims(embedding) WHEN %(length)s THEN embedding <=> %(vector)s::vector END
) distance (far)
WHERE {_OWNED} AND far <= %(farthest)s ORDER BY far, number LIMIT %(limit)s
"""
_WITHOUT_VECTOR = """
SELECT key FROM waystation_memories LEFT JOIN waystation_memory_vectors USING (key)
WHERE key = ANY(?) AND memory IS NOT NULL AND embedding IS NULL
"""
_ADD_VECTOR = """
INSERT INTO waystation_memory_vectors
SELECT key, %s::vector FROM waystation_memories WHERE key = %s AND memory IS NOT NULL ON CONFLICT DO NOTHING
"""
_DELETE = "DELETE FROM waystation_memories WHERE key = ? AND memory IS NOT NULL"
_KEEP_DELETED = "INSERT INTO waystation_memories (key, app_name, user_id) VALUES (?, ?, ?)"
_DELETE_SESSION = f"DELETE FROM waystation_memories WHERE {_OWNED} AND session_id = %(session)s"

_APPS = "SELECT DISTINCT app_name FROM waystation_memories WHERE user_id = ?"
# Includes the rows of memories that were deleted one by one, which have no words.
_OF_USER = "FROM waystation_memories WHERE app_name = ? AND user_id = ?"


class PostgresMemoryService(StoringMemoryService):
    """Finds up to `max_results` memories that share words with the query, best match first.

    Matching ignores case and accents. In scripts that do not put spaces between words, it compares characters. With
    `embed`, a search also finds memories whose vectors are near the query's, if the database has the extension
    `vector` (pgvector), and merges both results by reciprocal rank fusion.
    """

    def __init__(
        self,
        url: str,
        *,
        max_results: int = MAX_RESULTS,
        embed: Embed | None = None,
        max_distance: float = MAX_DISTANCE,
    ) -> None:
        """Use the database at `url`, such as `postgresql://user@host/database`. Tables are created when first needed.

        Raises:
            StoreFailed: The URL is not valid, or the extra `postgres` is not installed.
        """
        self._database = PostgresDatabase(url, "waystation_memories", _SCHEMA)
        self._table = SqlTable(self._database)
        self._max_results, self._embed, self._max_distance = max_results, embed, max_distance
        self._has_vectors: bool | None = None

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return up to `max_results` memories that match `query`, best match first."""
        from waystation.memory.memory_entry import SearchMemoryResponse

        owner = _Owner(app_name, user_id)
        query = query[:MAX_QUERY_CHARS]
        phrases = [phrase for term in terms(query)[:MAX_TERMS] if (phrase := fold(term))]
        forms = list_indexes(owner.word, phrases)
        words = " | ".join(f"({' <-> '.join(map(_quote, phrase))})" for form in forms for phrase in form)
        searches: list[tuple[str, dict[str, Any]]] = []
        if words:
            searches.append((_SEARCH, owner.params(f" & ({words})") | {"query": words}))
        if query.strip() and await self._use_vectors():
            [vector] = await self._embed_texts([query])
            near = {"vector": str(vector), "length": len(vector), "farthest": self._max_distance}
            searches.append((_NEAREST, owner.params() | near))

        def search(db: Transaction) -> list[list[Any]]:
            limit = {"limit": self._max_results}
            return [
                db.connection.execute(statement.encode(), params | limit).fetchall() for statement, params in searches
            ]

        scores: defaultdict[str, float] = defaultdict(float)
        memories: dict[str, str] = {}
        for rows in await self._table.do(search) if searches else ():
            for place, (key, memory) in enumerate(rows, _RANK_OFFSET):
                scores[key] += 1 / place
                memories[key] = memory
        keys = sorted(scores, key=scores.__getitem__, reverse=True)[: self._max_results]
        best = [StoredMemory.decode(memories[key]) for key in keys]
        return SearchMemoryResponse(memories=[memory.entry() for memory in best])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete one memory, with its words and its vector. Do nothing without a `memory_id`."""
        owner = _Owner(app_name, user_id)

        def delete(db: Transaction) -> None:
            key = owner.key(memory_id or "")
            if db.execute(_DELETE, key).rowcount:
                db.run(_KEEP_DELETED, key, owner.app, owner.user)

        if memory_id:
            await self._table.do(delete)

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Delete the memories of one session and return the number of deleted memories."""
        params = _Owner(app_name, user_id).params() | {"session": json.dumps(session_id)}
        return await self._table.do(lambda db: int(db.connection.execute(_DELETE_SESSION.encode(), params).rowcount))

    async def list_user_apps(self, *, user_id: str) -> list[str]:
        """Return the names of the apps in which a user has memories."""
        rows = await self._table.do(lambda db: db.run(_APPS, json.dumps(user_id)))
        return sorted(json.loads(str(app)) for (app,) in rows)

    async def delete_user(self, *, app_name: str, user_id: str, dry_run: bool = False) -> int:
        """Delete all memories of a user in an app, and return their number. With `dry_run`, only count them.

        The server's files contain them until it vacuums the table.
        """
        owner = _Owner(app_name, user_id)

        def delete(db: Transaction) -> int:
            [(count,)] = db.run(f"SELECT COUNT(memory) {_OF_USER}", owner.app, owner.user)
            if not dry_run:
                db.run(f"DELETE {_OF_USER}", owner.app, owner.user)
            return int(count)

        return await self._table.do(delete)

    async def store_id(self) -> str | None:
        """Return the ID of the table."""
        return await self._table.store_id()

    async def _add(self, app_name: str, user_id: str, memories: Sequence[StoredMemory]) -> None:
        if not memories:
            return
        owner = _Owner(app_name, user_id)
        by_key = {owner.key(memory.id): memory for memory in memories}
        rows = [
            (
                key,
                owner.app,
                owner.user,
                json.dumps(memory.session_id),
                memory.encode(Owner(app_name, user_id)),
                owner.index(memory),
            )
            for key, memory in by_key.items()
        ]

        def add(db: Transaction) -> None:
            with db.connection.cursor() as cursor:
                cursor.executemany(_ADD, rows)

        await self._table.do(add)
        if await self._use_vectors():
            await self._add_vectors(by_key)

    async def _add_vectors(self, memories: dict[str, StoredMemory]) -> None:
        """Add missing vectors, including those of memories that an interrupted attempt stored."""
        found = await self._table.do(lambda db: db.run(_WITHOUT_VECTOR, list(memories)))
        keys = [str(key) for (key,) in found if memories[str(key)].text.strip()]
        if not keys:
            return
        vectors = await self._embed_texts([memories[key].text[:MAX_INDEXED_CHARS] for key in keys])
        rows = [(str(vector), key) for key, vector in zip(keys, vectors, strict=True)]

        def add(db: Transaction) -> None:
            with db.connection.cursor() as cursor:
                cursor.executemany(_ADD_VECTOR, rows)

        await self._table.do(add)

    async def _embed_texts(self, texts: Sequence[str]) -> list[list[float]]:
        assert self._embed is not None
        return [[float(number) for number in vector] for vector in await self._embed(texts)]

    async def _use_vectors(self) -> bool:
        """Return whether memories have vectors. The first call creates their table if the extension is installed."""
        if self._embed is None:
            return False
        if self._has_vectors is None:

            def prepare(db: Transaction) -> bool:
                if has_extension := bool(db.run("SELECT 1 FROM pg_extension WHERE extname = 'vector'")):
                    self._database.create_table(db.connection, "waystation_memory_vectors", [_VECTORS])
                return has_extension

            self._has_vectors = await self._table.do(prepare)
            if not self._has_vectors:
                remedy = "run `CREATE EXTENSION vector` in the database to search memories by meaning too"
                log.warning("memory.without_vectors", place=self._table.place, remedy=remedy)
        return self._has_vectors


class _Owner:
    """The app and user that memories belong to, in the form in which PostgreSQL stores them."""

    def __init__(self, app_name: str, user_id: str) -> None:
        # PostgreSQL cannot store text with null characters, which names may contain. JSON escapes them.
        self.app, self.user = json.dumps(app_name), json.dumps(user_id)
        self.word = f"'u{digest([app_name, user_id])}'"

    def key(self, memory_id: str) -> str:
        return digest([self.app, self.user, memory_id])

    def params(self, words: str = "") -> dict[str, Any]:
        return {"app": self.app, "user": self.user, "words": f"{self.word}{words}"}

    def index(self, memory: StoredMemory) -> str:
        """Return the memory's words with their positions, and the word for the user, as a TSVECTOR literal."""
        positions: defaultdict[str, list[int]] = defaultdict(list)
        form, *_ = list_indexes(self.word, [fold(run) for run in runs(memory.text[:MAX_INDEXED_CHARS])])
        for position, word in enumerate((_quote(word) for phrase in form for word in phrase), 1):
            positions[word].append(position)
        words = (f"{word}:{','.join(map(str, places[:_MAX_POSITIONS]))}" for word, places in positions.items())
        return " ".join([self.word, *words])


def _quote(word: str) -> str:
    """Return a word, quoted for PostgreSQL. Words contain no quotation marks."""
    return f"'{word[:MAX_WORD_CHARS]}'"
