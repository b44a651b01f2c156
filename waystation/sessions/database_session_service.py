"""Mirrors ADK's `google.adk.sessions.database_session_service` module."""

import hashlib
import re
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from waystation.core import ids
from waystation.sessions.in_memory_session_service import InMemorySessionService
from waystation.sessions.program_run import ProgramRun

_SQLITE = re.compile(r"sqlite(\+\w+)?://(/(?P<path>[^?]*))?(\?.*)?")


class DatabaseSessionService(InMemorySessionService):
    """Names sessions that all runs of all programs with the same `db_url` share.

    The sessions' histories are in Temporal; nothing is read from or written to the database. A database in memory names
    sessions of one run of a program, as with `InMemorySessionService`.
    """

    def __init__(self, db_url: str | None = None, db_engine: Any = None, **kwargs: Any) -> None:
        """Create a service. `kwargs` has no effect.

        Raises:
            ValueError: Not exactly one of `db_url` and `db_engine` is given.
        """
        super().__init__()
        if (db_url is None) == (db_engine is None):
            raise ValueError("Exactly one of 'db_url' or 'db_engine' must be provided.")
        self._url = str(db_engine.url) if db_url is None else db_url

    async def delete_session(self, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session; see `RecordedSessionService`. As in ADK, the arguments may be positional."""
        await super().delete_session(app_name=app_name, user_id=user_id, session_id=session_id)

    async def prepare_tables(self) -> None:
        """Do nothing: there are no tables."""

    async def close(self) -> None:
        """Do nothing: the service has no connection of its own."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.close()

    def _open_run(self) -> tuple[ProgramRun, str]:
        url = self._url
        if sqlite := _SQLITE.fullmatch(url):
            if sqlite["path"] in (None, "", ":memory:"):
                return super()._open_run()
            url = Path(sqlite["path"]).resolve().as_uri()
        key = hashlib.sha256(url.encode()).hexdigest()[:12]
        return ProgramRun.open(key), ids.program_tenant(f"db-{key}")
