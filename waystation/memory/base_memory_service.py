"""The interface of memory that lasts across sessions. Method names and signatures match ADK 2.13."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.events import Event
    from waystation.memory.memory_entry import MemoryEntry, SearchMemoryResponse
    from waystation.tools.session_view import Session


class BaseMemoryService(abc.ABC):
    """Stores memories per app and user. Searches never return another user's memories.

    Subclass this to use a different store. Activities are retried, so adding the same event again must have no effect.
    """

    @abc.abstractmethod
    async def add_session_to_memory(self, session: Session) -> None:
        """Store all events of a session. The same session can be added again after it has grown."""

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
            NotImplementedError: This service accepts only whole sessions.
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
        """Store memories that do not come from a session.

        Raises:
            NotImplementedError: This service accepts only events from sessions.
        """
        raise NotImplementedError(
            "This memory service does not support direct memory writes. "
            "Call add_events_to_memory(...) or add_session_to_memory(session) instead."
        )

    @abc.abstractmethod
    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return this user's memories that match `query`, best match first. The query can be any text."""

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete the memory with this ID, as returned by a search. Do nothing if the ID is None.

        Raises:
            NotImplementedError: This service cannot delete individual memories.
        """
        raise NotImplementedError("This memory service does not support deleting individual memories.")

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Delete the memories of one session and return the number of deleted memories.

        Memories from `add_memory` belong to the user and are kept. A later session with the same ID can be added again.
        This method is not part of ADK.

        Raises:
            NotImplementedError: This service cannot delete the memories of a session.
        """
        raise NotImplementedError("This memory service does not support deleting the memories of a session.")

    async def list_user_apps(self, *, user_id: str) -> list[str]:
        """Return the names of the apps in which a user has memories. This method is not part of ADK.

        Raises:
            NotImplementedError: This service cannot list them.
        """
        raise NotImplementedError("This memory service does not list the apps of a user.")

    async def delete_user(self, *, app_name: str, user_id: str, dry_run: bool = False) -> int:
        """Delete all memories of a user in an app, and return their number. With `dry_run`, only count them.

        This method is not part of ADK.

        Raises:
            NotImplementedError: This service cannot delete them.
        """
        raise NotImplementedError("This memory service does not delete all memories of a user.")

    async def store_id(self) -> str | None:
        """Return the ID of the store, "" if the store does not exist yet, or None if stores of this kind have no ID.

        Workers record the ID to detect that they use different stores. This method is not part of ADK.
        """
        return None


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # ADK defines this class here. Import it only on demand because it imports genai's types.
        if name != "SearchMemoryResponse":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from waystation.memory.memory_entry import SearchMemoryResponse

        return SearchMemoryResponse
