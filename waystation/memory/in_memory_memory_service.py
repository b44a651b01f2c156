"""Memory that is gone with the process, for tests and trials. ADK's class of that name, and its way of matching."""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from waystation.memory.stored_memory import StoredMemory, StoringMemoryService, searchable_words, words_of

if TYPE_CHECKING:
    from waystation.memory.memory_entry import SearchMemoryResponse

MAX_RESULTS = 10


class InMemoryMemoryService(StoringMemoryService):
    """Finds the at most ten memories that share most words with the query; of equal ones, the oldest first."""

    def __init__(self) -> None:
        self._memories: dict[tuple[str, str], dict[str, StoredMemory | None]] = {}
        """By app and user, then by id; None for one that was deleted, so that its session does not bring it back."""
        # Sync tools have a thread, and may run an event loop of their own in it.
        self._lock = threading.Lock()

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the memories that share most words with `query`."""
        from waystation.memory.memory_entry import SearchMemoryResponse

        with self._lock:
            memories = [memory for memory in self._memories.get((app_name, user_id), {}).values() if memory]
        asked = words_of(query)
        scored = [(_shared(asked, memory.text), memory) for memory in memories]
        best = sorted((pair for pair in scored if pair[0]), key=lambda pair: -pair[0])
        return SearchMemoryResponse(memories=[memory.entry() for _, memory in best[:MAX_RESULTS]])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Forget one memory."""
        with self._lock:
            memories = self._memories.get((app_name, user_id), {})
            if memory_id in memories:
                memories[memory_id] = None

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Forget what was said in one session."""
        with self._lock:
            memories = self._memories.get((app_name, user_id), {})
            said = [id for id, memory in memories.items() if memory and memory.session_id == session_id]
            for id in said:
                del memories[id]
        return len(said)

    async def _add(self, app_name: str, user_id: str, memories: Sequence[StoredMemory]) -> None:
        with self._lock:
            kept = self._memories.setdefault((app_name, user_id), {})
            for memory in memories:
                kept.setdefault(memory.id, memory)


def _shared(asked: set[str], text: str) -> int:
    present = searchable_words(text)
    if not present:
        return 0
    lowered = unicodedata.normalize("NFC", text).lower()
    # Within other scripts a word may be part of a longer run of characters. Source: ADK 2.13.
    return sum(word in present or (not word.isascii() and word in lowered) for word in asked)
