"""What remembers over sessions, as tools see it. Method names and signatures are ADK's; source: adk-semantics 12.2."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.core import Event
    from waystation.memory.memory_entry import MemoryEntry, SearchMemoryResponse
    from waystation.tools.session import Session


class BaseMemoryService(abc.ABC):
    """Memories of the users of apps. What one user said is never found for another.

    Subclass it to remember elsewhere. Activities are retried, so adding the same event again must change nothing.
    """

    @abc.abstractmethod
    async def add_session_to_memory(self, session: Session) -> None:
        """Remember all events of a session. It may be added again when it has grown."""

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember some events, which need not be all of a session.

        Raises:
            NotImplementedError: This service only takes whole sessions.
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
        """Remember something that nobody said in a session.

        Raises:
            NotImplementedError: This service only takes what was said in one.
        """
        raise NotImplementedError(
            "This memory service does not support direct memory writes. "
            "Call add_events_to_memory(...) or add_session_to_memory(session) instead."
        )

    @abc.abstractmethod
    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the memories of this user that go with `query`, which is any text, the best first."""

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Forget one memory, by the `id` that a search returned; nothing without an id.

        Raises:
            NotImplementedError: This service cannot.
        """
        raise NotImplementedError("This memory service does not support deleting individual memories.")

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Forget what was said in one session, and return how many memories that was.

        Not ADK's. What a tool noted with `add_memory` belongs to the user and stays. Nothing is left that would keep a
        later session of the same id from being remembered.

        Raises:
            NotImplementedError: This service cannot.
        """
        raise NotImplementedError("This memory service does not support deleting the memories of a session.")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # ADK has the class in this module; here it waits for genai's types.
        if name != "SearchMemoryResponse":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from waystation.memory.memory_entry import SearchMemoryResponse

        return SearchMemoryResponse
