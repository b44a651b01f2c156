"""Runs of a program: which sessions they share, and whether the previous run is finished."""

import atexit
import hashlib
import json
import logging
import os
import re
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from waystation.embedded import try_lock
from waystation.private_files import create_folder

log = logging.getLogger("waystation.sessions")

FOLDER = Path(".waystation", "programs")
SESSIONS = "sessions.txt"
RESUME_VARIABLE = "WAYSTATION_RESUME"
"""Environment variable that is set to 1 to continue the previous run of the same program if it is unfinished."""


class _RunFile:
    """The identity of a program's run, which all of its session services share, in a file.

    The file is written before the first service does anything. While a run lasts, it locks another file, and other runs
    of the program do not use either.
    """

    def __init__(self, path: Path) -> None:
        """Begin a run. It continues the previous one if that is unfinished and WAYSTATION_RESUME=1 is set."""
        self._path, self.folder = path, path.parent
        self.id, self.is_resumed = uuid.uuid4().hex[:12], False
        self.parts: dict[str, str] = {}
        """IDs of the services that continue with another run than the program."""
        self.waiting: set[str] = set()
        """IDs of the invocations that the run has started and that have not ended."""
        self.previous: tuple[str, dict[str, str]] | None = None
        """The `id` and the `parts` of the previous run, if there was one."""
        self.was_interrupted = self.was_stopped = False
        create_folder(path.parent)
        lock = path.with_suffix(".lock").open("a")
        self.lock = lock if try_lock(lock) else None
        """None if another run has locked the file."""
        if self.lock is None:
            lock.close()
            return
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_text(encoding="utf-8"))
            self.previous = str(content["run"]), dict(content.get("parts") or {})
            self.was_interrupted, self.was_stopped = not content["ended"], bool(content.get("stopped"))
        if self.previous and os.environ.get(RESUME_VARIABLE) == "1":
            if self.was_interrupted:
                (self.id, self.parts), self.is_resumed = self.previous, True
            else:
                log.warning("The previous run of this program is finished, so a new one begins.")
        self.write(ended=False)

    def write(self, *, ended: bool, stopped: bool = False) -> None:
        if self.lock is not None:
            content = {"run": self.id, "ended": ended, "stopped": stopped, "parts": self.parts}
            # A run that is killed while it writes leaves the file as it was.
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(content), encoding="utf-8")
            new.replace(self._path)

    def end(self) -> None:
        error = getattr(sys, "last_value", None)  # set if an exception ended the program
        if sys.stdout is not None:
            sys.stdout.flush()  # a run is finished once its output is complete
        with suppress(FileNotFoundError):  # the program has deleted the folder
            is_stopped = isinstance(error, KeyboardInterrupt | EOFError)
            self.write(ended=error is None and not self.waiting, stopped=is_stopped)


class ProgramRun:
    """One run of a program, as one of its session services sees it.

    It has an ID that the next run with the same command can continue with.
    """

    _opened: "ClassVar[dict[str, ProgramRun]]" = {}

    def __init__(self, kind: str, file: _RunFile) -> None:
        self._kind, self._file, self._lock = kind, file, file.lock
        self.id = file.parts.get(kind) or f"{file.id}-{kind}"
        self.is_resumed = file.is_resumed
        """Whether `id` is the ID of the previous run."""
        self._sessions: set[str] | None = None
        """The sessions that this run, or a run that it continues, has created. None before the file is read."""
        self.was_interrupted = file.was_interrupted
        """Whether the previous run was killed, was stopped with Ctrl-C, ended with an exception, or ended while one of
        its invocations was waiting."""
        self.was_stopped = file.was_stopped
        """Whether a person ended the previous run, with Ctrl-C or at the end of its input."""

    @property
    def folder(self) -> Path:
        """A folder for the files of this run and of the runs that continue it. It may not exist yet."""
        return self._file.folder / self.id

    @classmethod
    def open(cls, kind: str) -> "ProgramRun":
        """Return the run of this process for the session service of this `kind`.

        It continues the previous run of the same command if that is unfinished and WAYSTATION_RESUME=1 is set.
        """
        if kind not in cls._opened:
            opened = next(iter(cls._opened.values()), None)
            cls._opened[kind] = cls(kind, opened._file if opened else cls._begin())
        return cls._opened[kind]

    @classmethod
    def _begin(cls) -> _RunFile:
        name = re.sub(r"\W+", "-", Path(sys.argv[0] or "python").stem)
        command = hashlib.sha256("\0".join(sys.orig_argv).encode()).hexdigest()[:12]
        file = _RunFile(FOLDER.absolute() / f"{name}-{command}.json")
        atexit.register(file.end)
        return file

    def resume(self) -> None:
        """Let this service continue with the ID of the previous run, if there was one."""
        if self._file.previous is not None and not self.is_resumed:
            run, parts = self._file.previous
            self.id, self.is_resumed, self._sessions = parts.get(self._kind) or f"{run}-{self._kind}", True, None
            self._file.parts[self._kind] = self.id
            self._file.write(ended=False)

    def note_invocation(self, invocation_id: str, *, has_ended: bool) -> None:
        """Record that this run has started an invocation, or that it has ended. A run with others is unfinished."""
        (self._file.waiting.discard if has_ended else self._file.waiting.add)(invocation_id)

    def note_session(self, session_id: str) -> None:
        """Record that this run creates a session. A run that continues this one knows it."""
        self._append("+", session_id)

    def forget_session(self, session_id: str) -> None:
        """Record that this run does not create a session after all."""
        self._append("-", session_id)

    def has_noted_session(self, session_id: str) -> bool:
        """Return whether this run, or a run that it continues, has created a session."""
        return session_id in self._load_sessions()

    def _append(self, sign: str, session_id: str) -> None:
        sessions = self._load_sessions()
        create_folder(self.folder)
        with (self.folder / SESSIONS).open("a", encoding="utf-8") as file:
            file.write(f"{sign}{json.dumps(session_id)}\n")
        (sessions.add if sign == "+" else sessions.discard)(session_id)

    def _load_sessions(self) -> set[str]:
        if self._sessions is None:
            self._sessions = set()
            with suppress(FileNotFoundError):
                for line in (self.folder / SESSIONS).read_text(encoding="utf-8").splitlines():
                    with suppress(ValueError):  # the last line may be cut off
                        change = self._sessions.add if line.startswith("+") else self._sessions.discard
                        change(json.loads(line[1:]))
        return self._sessions
