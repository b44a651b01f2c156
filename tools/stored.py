"""Artifacts and memory, as tools and callbacks reach them. Names, signatures and texts are ADK's; see adk-semantics 5.

All methods are coroutines. Artifacts belong to the session, or, with a name that begins with `user:`, to the user;
memories belong to the user. An invocation without a session is a session of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import structlog

from waystation.tools.actions import Acting
from waystation.tools.awaited import NotAwaited, Unawaited, must_be_awaited
from waystation.tools.given import list_given, text_given, version_given

if TYPE_CHECKING:
    from google.genai.types import Part

    from waystation.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService
    from waystation.core.event import Event
    from waystation.memory.base_memory_service import BaseMemoryService
    from waystation.memory.memory_entry import MemoryEntry, SearchMemoryResponse

log = structlog.get_logger("waystation.tools")


class _UserScope(TypedDict):
    app_name: str
    user_id: str


class _SessionScope(_UserScope):
    session_id: str


class StoredAccess(Acting):
    """A context that reaches what is kept beside history."""

    def __init__(self, **about: Any) -> None:
        """`about` is as for `ReadonlyContext`."""
        super().__init__(**about)
        self._unawaited: dict[int, Unawaited[Any]] = {}

    def not_awaited(self) -> NotAwaited | None:
        """Return what is to be said about methods that were called without `await`, if any were."""
        names = dict.fromkeys(call._name for call in self._unawaited.values())
        return NotAwaited(*names) if names else None

    def _user(self) -> _UserScope:
        return {"app_name": self.session.app_name, "user_id": self.user_id}


class ArtifactAccess(StoredAccess):
    """Named files with versions."""

    _idempotency_key: str = ""

    def __init__(self, **about: Any) -> None:
        """`about` is as for `ReadonlyContext`."""
        super().__init__(**about)
        self._saved: Counter[str] = Counter()

    @must_be_awaited
    async def list_artifacts(self) -> list[str]:
        """Return the names of the session's artifacts and of the user's, sorted.

        Raises:
            ValueError: The worker keeps no artifacts.
        """
        return await self._artifacts().list_artifact_keys(**self._session_scope())

    @must_be_awaited
    async def load_artifact(self, filename: str, version: int | None = None) -> Part | None:
        """Return a version of an artifact, or the latest; None when there is none.

        Raises:
            ValueError: The worker keeps no artifacts.
        """
        text_given("load_artifact", "filename", filename)
        version_given("load_artifact", version)
        service = self._artifacts()
        found = await service.load_artifact(**self._session_scope(), filename=filename, version=version)
        if found is None and any(filename in event.actions.artifact_delta for event in self.session.events):
            # Perhaps deleted: so it is no error. A worker with a place of its own would otherwise lose it in silence.
            log.warning(
                "artifact.missing",
                agent=self.agent_name,
                place=getattr(service, "place", type(service).__name__),
                problem="the conversation saved it, and it is not here; do all workers have the same --artifacts?",
            )
        return found

    @must_be_awaited
    async def save_artifact(
        self, filename: str, artifact: Part | dict[str, Any], custom_metadata: dict[str, Any] | None = None
    ) -> int:
        """Save a new version of an artifact, return its number, and record it in `actions.artifact_delta`.

        When a call is attempted again, each save that saves what it saved before returns the version of then: the
        first save under a name in a call is compared with the first of earlier attempts, the second with the second.

        Raises:
            InputValidationError: The Part holds nothing that can be kept.
            ValueError: The worker keeps no artifacts.
        """
        text_given("save_artifact", "filename", filename)
        service = self._artifacts()
        number = self._saved[filename]
        self._saved[filename] += 1
        scope = self._session_scope()
        # A service made for ADK has no such method, and callbacks have no key.
        if self._idempotency_key and hasattr(service, "save_artifact_once"):
            version = await service.save_artifact_once(
                **scope,
                filename=filename,
                artifact=artifact,
                custom_metadata=custom_metadata,
                idempotency_key=f"{self._idempotency_key}#{number}",
            )
        else:
            version = await service.save_artifact(
                **scope, filename=filename, artifact=artifact, custom_metadata=custom_metadata
            )
        self.actions.artifact_delta[filename] = version
        return version

    @must_be_awaited
    async def get_artifact_version(self, filename: str, version: int | None = None) -> ArtifactVersion | None:
        """Return what is known of a version of an artifact, or of the latest; None when there is none.

        Raises:
            ValueError: The worker keeps no artifacts.
        """
        text_given("get_artifact_version", "filename", filename)
        version_given("get_artifact_version", version)
        return await self._artifacts().get_artifact_version(**self._session_scope(), filename=filename, version=version)

    def _artifacts(self) -> BaseArtifactService:
        if self._services.artifacts is None:
            raise ValueError("Artifact service is not initialized.")
        return self._services.artifacts

    def _session_scope(self) -> _SessionScope:
        return {**self._user(), "session_id": self.session.id}


class MemoryAccess(StoredAccess):
    """What is remembered over sessions."""

    @must_be_awaited
    async def search_memory(self, query: str) -> SearchMemoryResponse:
        """Return the user's memories that go with `query`, which is any text.

        Raises:
            ValueError: The worker has no memory.
        """
        text_given("search_memory", "query", query)
        return await self._memory("Memory service is not available.").search_memory(**self._user(), query=query)

    @must_be_awaited
    async def add_session_to_memory(self) -> None:
        """Remember what was said in this session so far. Adding it again later adds what is new.

        Raises:
            ValueError: The worker has no memory.
        """
        service = self._memory("Cannot add session to memory: memory service is not available.")
        await service.add_session_to_memory(self.session)

    @must_be_awaited
    async def add_events_to_memory(
        self, *, events: Sequence[Event], custom_metadata: Mapping[str, object] | None = None
    ) -> None:
        """Remember some events of this session.

        Raises:
            ValueError: The worker has no memory.
        """
        list_given("add_events_to_memory", "events", events, "Event")
        service = self._memory("Cannot add events to memory: memory service is not available.")
        await service.add_events_to_memory(
            **self._user(), session_id=self.session.id, events=events, custom_metadata=custom_metadata
        )

    @must_be_awaited
    async def add_memory(
        self, *, memories: Sequence[MemoryEntry], custom_metadata: Mapping[str, object] | None = None
    ) -> None:
        """Remember something that nobody said.

        Raises:
            ValueError: The worker has no memory.
        """
        list_given("add_memory", "memories", memories, "MemoryEntry")
        service = self._memory("Cannot add memory: memory service is not available.")
        await service.add_memory(**self._user(), memories=memories, custom_metadata=custom_metadata)

    @must_be_awaited
    async def delete_memory(self, memory_id: str | None = None) -> None:
        """Forget one of the user's memories, by the `id` that a search returned.

        Raises:
            ValueError: The worker has no memory.
        """
        service = self._memory("Cannot delete memory: memory service is not available.")
        await service.delete_memory(**self._user(), memory_id=memory_id)

    def _memory(self, missing: str) -> BaseMemoryService:
        if self._services.memory is None:
            raise ValueError(missing)
        return self._services.memory
