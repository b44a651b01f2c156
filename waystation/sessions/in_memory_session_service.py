"""Mirrors ADK's `google.adk.sessions.in_memory_session_service` module."""

import itertools
import os
from collections.abc import Iterator
from typing import ClassVar

from waystation.core import ids
from waystation.sessions.program_run import ProgramRun
from waystation.sessions.recorded_session_service import RecordedSessionService

RESUME_VARIABLE = "WAYSTATION_RESUME"
"""Environment variable that is set to 1 to continue the sessions of the previous run of the same program."""


class InMemorySessionService(RecordedSessionService):
    """Names the sessions of one run of a program. Their histories are in Temporal, not in memory.

    Each run of a program starts without sessions, unless WAYSTATION_RESUME=1 is set. It then continues the sessions of
    the previous run that was started with the same command.
    """

    _numbers: ClassVar[Iterator[int]] = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self._number = next(self._numbers)

    def _open_run(self) -> tuple[ProgramRun, str]:
        # Each service of a program has its own sessions. A resumed program creates its services in the same order.
        run = ProgramRun.open(f"memory-{self._number}", resumes=lambda _: os.environ.get(RESUME_VARIABLE) == "1")
        return run, ids.program_tenant(run.id)
