"""An in-memory memory service for tests and experiments, with the matching rules of ADK's class of the same name."""

from __future__ import annotations

import json
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.memory.stored_memory import StoredMemory, StoringMemoryService, searchable_words, words_of

if TYPE_CHECKING:
    from waystation.memory.memory_entry import SearchMemoryResponse

MAX_RESULTS = 10


class InMemoryMemoryService(StoringMemoryService):
    """Finds up to ten memories that share the most words with the query. Among ties, the first added comes first.

    Memories are kept in memory and, once a `Runner` uses the service, in a file of the program's run.
    """

    def __init__(self) -> None:
        self._memories: dict[tuple[str, str], dict[str, StoredMemory | None]] = {}
        """Memories by app and user, then by ID. After `delete_memory`, the ID is kept with None, so that adding the
        session again does not restore the memory."""
        # Sync tools run in threads and may have their own event loops there.
        self._lock = threading.Lock()
        self._file: Path | None = None

    def keep_in(self, file: Path) -> None:
        """Read the memories in a file, and store all memories there from now on. If done already, do nothing."""
        with self._lock:
            if self._file is not None:
                return
            self._file = file
            for app_name, user_id, memories in json.loads(file.read_bytes()) if file.exists() else ():
                stored = {id: memory and StoredMemory(**memory) for id, memory in memories.items()}
                self._memories[app_name, user_id] = stored | self._memories.get((app_name, user_id), {})
            self._write()

    def _write(self) -> None:
        if self._file is not None:
            content = [
                [*key, {id: memory and asdict(memory) for id, memory in memories.items()}]
                for key, memories in self._memories.items()
            ]
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial = self._file.with_suffix(".partial")
            partial.write_text(json.dumps(content))
            partial.replace(self._file)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return up to ten memories that share the most words with `query`, best match first."""
        from waystation.memory.memory_entry import SearchMemoryResponse

        with self._lock:
            memories = [memory for memory in self._memories.get((app_name, user_id), {}).values() if memory]
        query_words = words_of(query)
        scored = [(_count_shared(query_words, memory.text), memory) for memory in memories]
        best = sorted((pair for pair in scored if pair[0]), key=lambda pair: -pair[0])
        return SearchMemoryResponse(memories=[memory.entry() for _, memory in best[:MAX_RESULTS]])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete one memory."""
        with self._lock:
            memories = self._memories.get((app_name, user_id), {})
            if memory_id in memories:
                memories[memory_id] = None
                self._write()

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Delete the memories of one session and return the number of deleted memories."""
        with self._lock:
            memories = self._memories.get((app_name, user_id), {})
            session_ids = [id for id, memory in memories.items() if memory and memory.session_id == session_id]
            for id in session_ids:
                del memories[id]
            self._write()
        return len(session_ids)

    async def list_user_apps(self, *, user_id: str) -> list[str]:
        """Return the names of the apps in which a user has memories."""
        with self._lock:
            return sorted(app for app, user in self._memories if user == user_id)

    async def delete_user(self, *, app_name: str, user_id: str, dry_run: bool = False) -> int:
        """Delete all memories of a user in an app, and return their number. With `dry_run`, only count them."""
        key = app_name, user_id
        with self._lock:
            memories = self._memories.get(key, {}) if dry_run else self._memories.pop(key, {})
            self._write()
        return sum(memory is not None for memory in memories.values())

    async def _add(self, app_name: str, user_id: str, memories: Sequence[StoredMemory]) -> None:
        with self._lock:
            stored = self._memories.setdefault((app_name, user_id), {})
            for memory in memories:
                stored.setdefault(memory.id, memory)
            self._write()


def _count_shared(query_words: set[str], text: str) -> int:
    words = searchable_words(text)
    if not words:
        return 0
    lowered = unicodedata.normalize("NFC", text).lower()
    # In other scripts, a word may be part of a longer run of characters. ADK 2.13 uses the same rule.
    return sum(word in words or (not word.isascii() and word in lowered) for word in query_words)
