"""The interface of memory across sessions. Method names and signatures are ADK's; source: adk-semantics 12.2."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.core import Event
    from waystation.memory.memory_entry import MemoryEntry, SearchMemoryResponse
    from waystation.tools.session_view import Session


class BaseMemoryService(abc.ABC):
    """Memories of the users of apps. Searches never return memories of another user.

    Subclass it to use another store. Activities are retried, so adding the same event again must have no effect.
    """

    @abc.abstractmethod
    async def add_session_to_memory(self, session: Session) -> None:
        """Store all events of a session. A longer version of the session can be added later."""

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store some events of a session.

        Raises:
            NotImplementedError: This service only accepts whole sessions.
        """
        raise NotImplementedError(
            "This memory service does not support adding event deltas. "
            "Call add_session_to_memory(session) to ingest the full session."
        )

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store memories that are not from a session.

        Raises:
            NotImplementedError: This service only accepts events of sessions.
        """
        raise NotImplementedError(
            "This memory service does not support direct memory writes. "
            "Call add_events_to_memory(...) or add_session_to_memory(session) instead."
        )

    @abc.abstractmethod
    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the memories of this user that match `query`, which is any text; best match first."""

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete one memory by the `id` from a search. Without an id, do nothing.

        Raises:
            NotImplementedError: This service does not support it.
        """
        raise NotImplementedError("This memory service does not support deleting individual memories.")

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Delete the memories of one session; return their number. Not in ADK.

        Memories from `add_memory` belong to the user and stay. A later session with the same id can be added again.

        Raises:
            NotImplementedError: This service does not support it.
        """
        raise NotImplementedError("This memory service does not support deleting the memories of a session.")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # ADK defines the class in this module. It is loaded late because it imports genai's types.
        if name != "SearchMemoryResponse":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from waystation.memory.memory_entry import SearchMemoryResponse

        return SearchMemoryResponse
