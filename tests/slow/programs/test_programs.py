"""Complete ADK programs, with google-adk and, after a change of import lines, here: the output is the same."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from tests.slow.programs.scripts import KILLED_AT, REPLIES
from waystation.embedded import EmbeddedServer
from waystation.testing import FakeGemini

PROGRAMS = Path(__file__).with_name("adk")
ADK_PYTHON = ROOT / ".venv-adk" / "bin" / "python"
LIMIT_S = 90.0


@contextlib.asynccontextmanager
async def started(
    python: str | Path, name: str, folder: Path, gemini: FakeGemini, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a program in a process group of its own, with the fake as its Gemini."""
    process = await asyncio.create_subprocess_exec(
        python,
        f"{name}.py",
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "GOOGLE_GEMINI_BASE_URL": gemini.url,
            "GOOGLE_API_KEY": "test",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT) if python == sys.executable else "",
            **environment,
        },
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def lines_of(process: asyncio.subprocess.Process) -> list[str]:
    """Wait for the program's end, and return what it printed. The program must succeed."""
    async with asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().splitlines()


def prepare(folder: Path, change: Callable[[str], str] = str) -> Path:
    """Copy the programs into a new folder."""
    shutil.copytree(PROGRAMS, folder)
    for file in folder.glob("*.py"):
        file.write_text(change(file.read_text()))
    return folder


async def run_with_adk(name: str, folder: Path) -> tuple[list[str], list[str]]:
    """Return what the program prints with google-adk, and what its tools did."""
    assert ADK_PYTHON.exists(), f"{ADK_PYTHON} is missing; run `make test-full`, or `make .venv-adk/.stamp` once."
    prepare(folder, lambda source: re.sub("^from waystation", "from google.adk", source, flags=re.MULTILINE))
    async with FakeGemini(checks_turns=False) as gemini:
        script(gemini, REPLIES[name])
        async with started(ADK_PYTHON, name, folder, gemini) as process:
            return await lines_of(process), effects_in(folder)


def script(gemini: FakeGemini, replies: Any) -> None:
    """Let the model say these replies."""
    for reply in replies:
        gemini.reply(**reply)


def effects_in(folder: Path) -> list[str]:
    """Return what tools did, in order."""
    file = folder / "effects.txt"
    return file.read_text().splitlines() if file.exists() else []


@contextlib.contextmanager
def stopping_server(folder: Path) -> Any:
    """Stop the server that a program has started in a folder."""
    try:
        yield
    finally:
        lock = folder / ".waystation" / "temporal.db.lock"
        if lock.exists():
            os.kill(int(lock.read_text().split()[1]), signal.SIGKILL)


@pytest.mark.parametrize("name", REPLIES)
async def test_program_prints_what_it_prints_with_google_adk(name: str, tmp_path: Path, server: EmbeddedServer) -> None:
    """A program prints the same lines after only its import lines have changed."""
    adk = asyncio.create_task(run_with_adk(name, tmp_path / "adk"))
    folder = prepare(tmp_path / "waystation")
    async with FakeGemini() as gemini:
        script(gemini, REPLIES[name])
        async with started(sys.executable, name, folder, gemini, TEMPORAL_ADDRESS=server.address) as process:
            lines = await lines_of(process)
        assert gemini.remaining == 0
    assert (lines, effects_in(folder)) == await adk


async def test_program_starts_a_server_that_a_resumed_program_finds(tmp_path: Path) -> None:
    """Without an address, a program and the next one in its folder share a server."""
    folder = prepare(tmp_path / "waystation")
    with stopping_server(folder):
        async with FakeGemini() as gemini:
            script(gemini, REPLIES["stock_price"])
            for environment in ({}, {"WAYSTATION_RESUME": "1"}):
                async with started(sys.executable, "stock_price", folder, gemini, **environment) as process:
                    out, _ = await process.communicate()
                # The first run has ended, so its session cannot be created again.
                assert (process.returncode, len(out.splitlines())) == ((1, 0) if environment else (0, 1))


@pytest.mark.parametrize(
    ("name", "count"), [*KILLED_AT.items(), *(("reimbursement", count) for count in (2, 3, 4, 5))], ids=str
)
async def test_killed_program_continues_without_repeating_an_effect(
    name: str, count: int, tmp_path: Path, server: EmbeddedServer
) -> None:
    """A program that is killed during a request to the model prints the remaining lines, and no tool runs twice.

    The request follows the first recorded result or, in the program with an approval, any other step.
    """
    adk = asyncio.create_task(run_with_adk(name, tmp_path / "adk"))
    folder = prepare(tmp_path / "waystation")
    async with FakeGemini() as gemini:
        script(gemini, REPLIES[name][:count])
        gemini.fault(delay_s=60)
        async with started(sys.executable, name, folder, gemini, TEMPORAL_ADDRESS=server.address) as process:
            async with asyncio.timeout(LIMIT_S):
                while len(gemini.requests) <= count:
                    await asyncio.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
            assert process.stdout is not None
            before = (await process.stdout.read()).decode().splitlines()
        script(gemini, REPLIES[name][count:])
        environment = {"TEMPORAL_ADDRESS": server.address, "WAYSTATION_RESUME": "1"}
        async with started(sys.executable, name, folder, gemini, **environment) as process:
            lines = await lines_of(process)
        assert gemini.remaining == 0
    expected, effects = await adk
    assert effects_in(folder) == effects
    assert before == expected[: len(before)]
    # Tools that finished do not run again, so they do not print again.
    printed = [line for line in before if line.startswith("Tool:")]
    assert lines == [line for line in expected if line not in printed]
