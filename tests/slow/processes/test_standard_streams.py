"""Programs start with closed standard streams."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

WORKER = [sys.executable, "worker.py", "check", "--agents", "examples"]
COMMAND = [str(Path(sys.executable).parent / "waystation"), "--version"]


@pytest.mark.parametrize("program", [WORKER, COMMAND], ids=["worker", "command"])
@pytest.mark.parametrize("closed", ["0", "1", "2"])
async def test_a_closed_stream_does_not_stop_a_program(program: list[str], closed: str) -> None:
    """Some service managers start programs in this way. Without output, the exit code has the result."""
    close = ["/bin/sh", "-c", f'exec "$@" {closed}>&-', "sh"]
    nothing = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*close, *program, cwd=ROOT, stdout=nothing, stderr=nothing)
    assert await process.wait() == 0
