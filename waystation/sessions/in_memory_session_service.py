"""Mirrors ADK's `google.adk.sessions.in_memory_session_service` module."""

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from waystation.core import ids
from waystation.sessions.background import BACKGROUND
from waystation.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from waystation.sessions.program_run import ProgramRun
from waystation.sessions.recorded_session_service import RecordedSessionService
from waystation.sessions.session import Session


class InMemorySessionService(RecordedSessionService):
    """Names the sessions of one run of a program. Their histories are in Temporal, not in memory.

    Each run of a program starts without sessions, unless WAYSTATION_RESUME=1 is set and the previous run with the same
    command is unfinished. It then continues that run with all of its services.
    """

    _numbers: ClassVar[Iterator[int]] = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self._number = next(self._numbers)

    def create_session_sync(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session; see `create_session`."""
        created = self.create_session(app_name=app_name, user_id=user_id, state=state, session_id=session_id)
        return BACKGROUND.submit(created).result()

    def get_session_sync(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session; see `get_session`."""
        found = self.get_session(app_name=app_name, user_id=user_id, session_id=session_id, config=config)
        return BACKGROUND.submit(found).result()

    def list_sessions_sync(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of an app; see `list_sessions`."""
        return BACKGROUND.submit(self.list_sessions(app_name=app_name, user_id=user_id)).result()

    def delete_session_sync(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session; see `delete_session`."""
        BACKGROUND.submit(self.delete_session(app_name=app_name, user_id=user_id, session_id=session_id)).result()

    def _open_run(self) -> tuple[ProgramRun, str]:
        # Each service of a program has its own sessions. A resumed program creates its services in the same order.
        run = ProgramRun.open(f"memory-{self._number}")
        return run, ids.program_tenant(run.id)
