"""Our programs, run to their end as a user runs them."""

import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass

from typer.testing import CliRunner

from tests.paths import ROOT
from waystation.cli.program import app
from waystation.core import JsonObject

TIME = r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"
"""Matches a time in the output of a command, which has a date unless it is of today."""


def without_time(line: str) -> str:
    """Return a line of output without its time, or without the indentation below one."""
    return re.sub(rf"^(?:{TIME}  | {{21}}| {{10}})", "", line)


def undisturbed() -> dict[str, str]:
    """Return this process's environment without a developer's own settings."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "GOOGLE_", "GEMINI_"))}


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `worker.py` to its end."""
    command = [sys.executable, "worker.py", *options]
    return subprocess.run(
        command, cwd=ROOT, env={**undisturbed(), **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def logged(done: subprocess.CompletedProcess[str]) -> list[JsonObject]:
    """Return what was logged; everything that was said has to be JSON, and none of it on standard output."""
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[JsonObject]:
        """The JSON lines on stdout; there must be nothing else."""
        return [json.loads(line) for line in self.out.splitlines()]


async def command(*arguments: str) -> Ran:
    """Run `waystation` with these arguments, in a thread because it brings an event loop of its own."""
    result = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)
