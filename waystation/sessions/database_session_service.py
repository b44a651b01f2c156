"""Mirrors ADK's `google.adk.sessions.database_session_service` module."""

import hashlib
import re
from pathlib import Path
from typing import Any

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

    def _open_run(self) -> tuple[ProgramRun, str]:
        url = self._url
        if sqlite := _SQLITE.fullmatch(url):
            if sqlite["path"] in (None, "", ":memory:"):
                return super()._open_run()
            url = Path(sqlite["path"]).resolve().as_uri()
        key = hashlib.sha256(url.encode()).hexdigest()[:12]
        return ProgramRun.open(key, resumes=lambda run: run.was_interrupted), ids.program_tenant(f"db-{key}")
