"""Runs of a program: which sessions they share, and whether the previous run ended."""

import atexit
import hashlib
import json
import re
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, ClassVar, Self

from waystation.embedded import try_lock

FOLDER = Path(".waystation", "programs")


class ProgramRun:
    """One run of a program, with an ID that the next run with the same command can continue with.

    The ID is stored in a file, which stays locked until the process ends. While it is locked, other runs of the program
    do not use the file.
    """

    _opened: "ClassVar[dict[Path, ProgramRun]]" = {}

    def __init__(self, folder: Path, file: IO[str] | None, previous: str | None, *, was_interrupted: bool) -> None:
        self._folder, self._file, self._previous = folder, file, previous
        self.was_interrupted = was_interrupted
        """Whether the previous run was killed or ended with an exception."""
        self.id = uuid.uuid4().hex[:12]
        self.is_resumed = False
        """Whether `id` is the ID of the previous run."""

    @property
    def folder(self) -> Path:
        """A folder for the files of this run and of the runs that continue it. It may not exist yet."""
        return self._folder / self.id

    @classmethod
    def open(cls, kind: str, *, resumes: "Callable[[ProgramRun], bool]") -> "ProgramRun":
        """Begin a run, which continues the previous one of the same `kind` if `resumes` returns True for it.

        If this process has begun a run of this kind already, return it.
        """
        name = re.sub(r"\W+", "-", Path(sys.argv[0] or "python").stem)
        command = hashlib.sha256("\0".join(sys.orig_argv).encode()).hexdigest()[:12]
        path = FOLDER.absolute() / f"{name}-{command}-{kind}.json"
        if path not in cls._opened:
            path.parent.mkdir(parents=True, exist_ok=True)
            cls._opened[path] = run = cls._read(path.open("a+"), path.parent)
            if resumes(run):
                run.resume()
            run._write(ended=False)
            atexit.register(run._end)
        return cls._opened[path]

    @classmethod
    def _read(cls, file: IO[str], folder: Path) -> Self:
        if not try_lock(file):
            file.close()
            return cls(folder, None, None, was_interrupted=False)
        file.seek(0)
        with suppress(ValueError, KeyError, TypeError):
            content = json.loads(file.read())
            return cls(folder, file, str(content["run"]), was_interrupted=not content["ended"])
        return cls(folder, file, None, was_interrupted=False)

    def resume(self) -> None:
        """Continue with the ID of the previous run, if there was one."""
        if self._previous is not None:
            self.id, self.is_resumed = self._previous, True
            self._write(ended=False)

    def _write(self, *, ended: bool) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.write(json.dumps({"run": self.id, "ended": ended}))
            self._file.flush()

    def _end(self) -> None:
        if not hasattr(sys, "last_value"):  # set if an exception ended the program
            self._write(ended=True)
