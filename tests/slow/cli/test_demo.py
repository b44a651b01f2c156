"""Run `make demo` in a separate process."""

import asyncio
import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.paths import ROOT
from tests.slow.test_packaging import find_uv, uv

MARK = "WAYSTATION_DEMO_TEST"
PROGRAM = (sys.executable, "-m", "waystation.cli")


class RunningDemo:
    """A running demo; every process that it starts has its mark."""

    def __init__(self, mark: str, process: asyncio.subprocess.Process) -> None:
        self.mark, self.process = mark, process
        self.out = ""

    async def until(self, text: str) -> None:
        """Read until it has printed `text`."""
        assert self.process.stdout is not None
        while text not in self.out:
            piece = await self.process.stdout.read(4096)
            assert piece, f"it ended before it said {text!r}:\n{self.out}"
            self.out += piece.decode()

    async def end(self) -> int:
        """Read to the end; return the exit code."""
        assert self.process.stdout is not None
        self.out += (await self.process.stdout.read()).decode()
        return await self.process.wait()

    def processes(self) -> list[str]:
        """Return the processes of the demo that still run."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


@asynccontextmanager
async def demo(
    folder: Path, *arguments: str, program: Sequence[str] = PROGRAM, **variables: str
) -> AsyncIterator[RunningDemo]:
    """Run the demo without a terminal; its temporary files go to `folder`."""
    mark = uuid.uuid4().hex
    process = await asyncio.create_subprocess_exec(
        *(*program, "demo", "--model", "demo", *arguments),
        cwd=ROOT if program is PROGRAM else folder,
        env={**os.environ, MARK: mark, "TMPDIR": str(folder), **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield RunningDemo(mark, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_demo_shows_all_six_steps_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Two demos run at the same time, one approved by itself and one rejected; each has its own server."""
    async with demo(tmp_path) as approved, demo(tmp_path, "--answer", "reject") as rejected:
        assert await approved.end() == 0, approved.out
        assert await rejected.end() == 0, rejected.out
    for one in (approved, rejected):
        assert re.findall(r"^(\d)  ", one.out, re.MULTILINE) == list("123456")
        assert max(map(len, one.out.splitlines())) <= 80
        assert "exit code -9" in one.out
        assert len(re.findall("still waits", one.out)) == 2
        assert "[demo model] 50$ for meals: reimbursed." in re.sub(r"\s+", " ", one.out)
        assert "replays against the current code" in one.out
        assert one.processes() == []
    assert "`reimburse` ran exactly once" in approved.out
    assert "`reimburse` did not run" in rejected.out
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", ["2  Start", "restart"])
async def test_an_interrupted_demo_stops_its_processes(tmp_path: Path, moment: str) -> None:
    """Handles Ctrl-C and SIGTERM; one line reports it."""
    async with demo(tmp_path) as interrupted:
        await interrupted.until(moment)
        assert len(interrupted.processes()) == 3
        interrupted.process.send_signal(signal.SIGINT if moment == "restart" else signal.SIGTERM)
        assert await interrupted.end() == 130, interrupted.out
        assert interrupted.processes() == []
    assert "Interrupted" in interrupted.out
    assert "Traceback" not in interrupted.out
    assert os.listdir(tmp_path) == []


@pytest.fixture
def packaged(tmp_path: Path) -> Sequence[str]:
    """The command that runs the wheel with uv."""
    folder, python = tmp_path / "dist", ("--python", sys.executable)
    uv("build", "--quiet", "--wheel", "--no-build-isolation", *python, "--out-dir", folder)
    [wheel] = folder.glob("*.whl")
    return (find_uv(), "tool", "run", *python, "--from", str(wheel), "waystation")


async def test_the_demo_runs_from_the_wheel_alone(packaged: Sequence[str], tmp_path: Path) -> None:
    """`uvx` installs the wheel without extras, and no checkout is near. uv also finds the server."""
    # No `temporal` is on this PATH. Both environments of uv get the locked versions.
    settings = {"PATH": os.defpath, "UV_CONSTRAINT": str(ROOT / "requirements.lock")}
    async with demo(tmp_path, program=packaged, **settings) as alone:
        assert await alone.end() == 0, alone.out
    assert "Downloading the Temporal server" in alone.out
    assert "`reimburse` ran exactly once" in alone.out
