"""Runs of a program: which sessions they share, and whether the previous run ended."""

import atexit
import hashlib
import json
import os
import re
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, ClassVar, Self

from waystation.embedded import try_lock

FOLDER = Path(".waystation", "programs")
SESSIONS = "sessions.txt"
RESUME_VARIABLE = "WAYSTATION_RESUME"
"""Environment variable that is set to 1 to continue the previous run of the same program."""


class ProgramRun:
    """One run of a program, with an ID that the next run with the same command can continue with.

    The ID is stored in a file. While a run lasts, it locks another file, and other runs of the program do not use
    either.
    """

    _opened: "ClassVar[dict[Path, ProgramRun]]" = {}

    def __init__(self, path: Path, lock: IO[str] | None) -> None:
        """Begin a run with a new ID. `path` is the file. `lock` is None if another run has locked it."""
        self._path, self._lock = path, lock
        self.id = uuid.uuid4().hex[:12]
        self.is_resumed = False
        """Whether `id` is the ID of the previous run."""
        self._previous: str | None = None
        self._sessions: set[str] | None = None
        """The sessions that this run, or a run that it continues, has created. None before the file is read."""
        self.was_interrupted = False
        """Whether the previous run was killed, stopped with Ctrl-C or ended with an exception."""
        self.was_stopped = False
        """Whether a person ended the previous run, with Ctrl-C or at the end of its input."""

    @property
    def folder(self) -> Path:
        """A folder for the files of this run and of the runs that continue it. It may not exist yet."""
        return self._path.parent / self.id

    @classmethod
    def open(cls, kind: str) -> "ProgramRun":
        """Begin a run. It continues the previous one of the same `kind` if WAYSTATION_RESUME=1 is set.

        If this process has begun a run of this kind already, return it.
        """
        name = re.sub(r"\W+", "-", Path(sys.argv[0] or "python").stem)
        command = hashlib.sha256("\0".join(sys.orig_argv).encode()).hexdigest()[:12]
        path = FOLDER.absolute() / f"{name}-{command}-{kind}.json"
        if path not in cls._opened:
            path.parent.mkdir(parents=True, exist_ok=True)
            cls._opened[path] = run = cls._lock_and_read(path)
            if os.environ.get(RESUME_VARIABLE) == "1":
                run.resume()
            run._write(ended=False)
            atexit.register(run._end)
        return cls._opened[path]

    @classmethod
    def _lock_and_read(cls, path: Path) -> Self:
        lock = path.with_suffix(".lock").open("a")
        if not try_lock(lock):
            lock.close()
            return cls(path, None)
        run = cls(path, lock)
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_text(encoding="utf-8"))
            run._previous = str(content["run"])
            run.was_interrupted = not content["ended"]
            run.was_stopped = bool(content.get("stopped"))
        return run

    def resume(self) -> None:
        """Continue with the ID of the previous run, if there was one."""
        if self._previous is not None and not self.is_resumed:
            self.id, self.is_resumed, self._sessions = self._previous, True, None
            self._write(ended=False)

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
        self.folder.mkdir(parents=True, exist_ok=True)
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

    def _write(self, *, ended: bool, stopped: bool = False) -> None:
        if self._lock is not None:
            content = {"run": self.id, "ended": ended} | ({"stopped": True} if stopped else {})
            # A run that is killed while it writes leaves the file as it was.
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(content), encoding="utf-8")
            new.replace(self._path)

    def _end(self) -> None:
        error = getattr(sys, "last_value", None)  # set if an exception ended the program
        with suppress(FileNotFoundError):  # the program has deleted the folder
            self._write(ended=error is None, stopped=isinstance(error, KeyboardInterrupt | EOFError))
