"""Complete ADK programs print the same with google-adk and, after a change of import lines, with Waystation."""

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from tests.slow.programs.scripts import REPLIES
from waystation.embedded import EmbeddedServer
from waystation.testing import FakeGemini

PROGRAMS = Path(__file__).with_name("adk")
ADK_PYTHON = ROOT / ".venv-adk" / "bin" / "python"
LIMIT_S = 90.0
KILLS = 20
"""How often each program is killed."""


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
    """Wait for the program's end, and return its output. The program must succeed."""
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
    """Return the program's output with google-adk, and the effects of its tools."""
    assert ADK_PYTHON.exists(), f"{ADK_PYTHON} is missing; run `make test-full`, or `make .venv-adk/.stamp` once."
    prepare(folder, lambda source: re.sub("^from waystation", "from google.adk", source, flags=re.MULTILINE))
    async with FakeGemini(checks_turns=False) as gemini:
        script(gemini, REPLIES[name])
        async with started(ADK_PYTHON, name, folder, gemini) as process:
            return await lines_of(process), effects_in(folder)


def script(gemini: FakeGemini, replies: Any) -> None:
    """Make the fake Gemini return these replies."""
    for reply in replies:
        gemini.reply(**reply)


def effects_in(folder: Path) -> list[str]:
    """Return the effects of tools, in order."""
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
    """Without an address, a program and the next one in its folder share a server.

    The first run is finished, so the next one begins anew.
    """
    folder = prepare(tmp_path / "waystation")
    with stopping_server(folder):
        async with FakeGemini() as gemini:
            for environment in ({}, {"WAYSTATION_RESUME": "1"}):
                script(gemini, REPLIES["stock_price"])
                async with started(sys.executable, "stock_price", folder, gemini, **environment) as process:
                    assert len(await lines_of(process)) == 1


class RepeatingGemini(FakeGemini):
    """Replies slowly, and with the same answer to the same prompt, so that a program can be killed at any point."""

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[str, Any] = {}
        self.last_at = 0.0
        """When the last request arrived, in seconds since 1970."""

    def _take_answer(self, match: re.Match[str], headers: Mapping[str, str], data: bytes, *, streamed: bool) -> Any:
        prompt, self.last_at = json.dumps(json.loads(data)["contents"]), time.time()
        if prompt not in self._given:
            answer = super()._take_answer(match, headers, data, streamed=streamed)
            self._given[prompt] = dataclasses.replace(answer, delay_s=0.2)
        return self._given[prompt]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", REPLIES)
async def test_program_killed_at_random_points_resumes(name: str, tmp_path: Path, server: EmbeddedServer) -> None:
    """A killed program prints the same as with google-adk, and each effect happens once despite earlier runs.

    Only a tool whose result was perhaps not recorded when the program was killed may run again.
    """
    adk = asyncio.create_task(run_with_adk(name, tmp_path / "adk"))
    folder, points = prepare(tmp_path / "waystation"), random.Random(name)
    effects_file, address = folder / "effects.txt", {"TEMPORAL_ADDRESS": server.address}
    async with RepeatingGemini() as gemini:
        script(gemini, REPLIES[name])
        begun = time.monotonic()
        async with started(sys.executable, name, folder, gemini, **address) as process:
            expected, took = await lines_of(process), time.monotonic() - begun
        effects = effects_in(folder)
        assert (expected, effects) == await adk
        for _ in range(KILLS):
            effects_file.unlink(missing_ok=True)
            async with started(sys.executable, name, folder, gemini, **address) as process:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), points.uniform(0, took))
            assert process.stdout is not None
            before = (await process.stdout.read()).decode().splitlines()
            assert before == expected[: len(before)]
            [run] = (folder / ".waystation" / "programs").glob("*.json")
            if before == expected and json.loads(run.read_text())["ended"]:
                continue  # killed too late
            done, allowed = len(effects_in(folder)), [effects]
            if done and effects_file.stat().st_mtime > gemini.last_at:
                allowed.append([*effects[:done], *effects[done - 1 :]])
            async with started(sys.executable, name, folder, gemini, **address, WAYSTATION_RESUME="1") as process:
                lines = await lines_of(process)
            assert effects_in(folder) in allowed
            # Tools that finished do not run again, so they do not print again.
            assert [x for x in lines if x[:5] != "Tool:"] == [x for x in expected if x[:5] != "Tool:"]
