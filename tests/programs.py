"""Run Waystation's programs to their end as a user does."""

import asyncio
import json
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from tests.paths import ROOT
from waystation.cli.program import app
from waystation.core.payload import JsonObject

TIME = r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"
"""Matches a time in the output of a command, which has a date unless it is of today."""


def without_time(line: str) -> str:
    """Return a line of output without its time, or without the indentation below one."""
    return re.sub(rf"^(?:{TIME}  | {{21}}| {{10}})", "", line)


def undisturbed() -> dict[str, str]:
    """Return this process's environment without the developer's own settings."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "GOOGLE_", "GEMINI_"))}


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["waystation.models.gemini", "waystation.worker.main", "tests.programs"])


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `worker.py` to its end.

    The process is forked from one that has imported the modules already, which saves a second of CPU time.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _FORKS.Process(target=_run_worker, args=(options, {**undisturbed(), **environment}, out, err))
        process.start()
        process.join(60)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"Still running after a minute: {options}")
        return subprocess.CompletedProcess(options, process.exitcode, out.read_text(), err.read_text())


def _run_worker(options: Sequence[str], environment: Mapping[str, str], out: Path, err: Path) -> None:
    for stream, path in ((sys.stdout, out), (sys.stderr, err)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.argv = ["worker.py", *options]
    runpy.run_path("worker.py", run_name="__main__")


def logged(done: subprocess.CompletedProcess[str]) -> list[JsonObject]:
    """Return the logged events; all output must be JSON, and none of it on standard output."""
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of a command."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[JsonObject]:
        """Return the JSON lines on stdout, which must have no other lines."""
        return [json.loads(line) for line in self.out.splitlines()]


async def command(*arguments: str) -> Ran:
    """Run `waystation` with these arguments, in a thread because it creates its own event loop."""
    result = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)
