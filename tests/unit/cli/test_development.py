"""`waystation dev` notices which files change, and shows what the worker logs."""

import asyncio
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.programs import command
from waystation.cli import development
from waystation.cli.development import DevelopmentWorker, _find_times
from waystation.cli.output import Output

PROCESS = SimpleNamespace(pid=7)
"""The output of a worker's process, and no other part of it."""


class StillWorker(DevelopmentWorker):
    """A worker that starts no process."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.starts = asyncio.Queue[None]()

    def _start(self) -> None:
        self._processes = [Mock()]
        self.starts.put_nowait(None)


def test_files_of_agents_are_watched(tmp_path: Path) -> None:
    """Code, settings and prompts are watched, but not environments, caches, hidden folders and other files."""
    watched = ["agent.py", "sub/prompt.md", "sub/settings.yaml"]
    others = [".git/a.py", "__pycache__/a.py", "env/lib/a.py", "node_modules/a.json", "data.db"]
    for name in [*watched, *others, "env/pyvenv.cfg"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(_find_times(tmp_path)) == [str(tmp_path / name) for name in watched]


async def test_mistakes_and_output_of_tools_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Problems are shown with their place, and output of tools unchanged, but ordinary log lines are not.

    The worker serves once it has polled; the time counts from the start of the command.
    """
    polls = iter([False, True])

    async def is_polled_by(pid: int) -> bool:
        return pid == PROCESS.pid and next(polls)

    worker = DevelopmentWorker(Output(), tmp_path, [], is_polled_by=is_polled_by, started_at=time.time() - 100)
    for line in (
        '{"event": "agent.invalid", "level": "error", "place": "agent.py", "problem": "It has no name."}',
        '{"event": "tool_call.completed", "level": "info", "tool": "pay"}',
        '{"event": "worker.ready", "level": "info", "agents": ["a", "b"]}',
        "printed by a tool \x1b[2J",
    ):
        worker._write(line, PROCESS)
    assert await worker.wait_until_ready() == ["a", "b"]
    output = capsys.readouterr()
    assert output.out == "agent.invalid: agent.py: It has no name.\nprinted by a tool \\x1b[2J\n"
    assert output.err.startswith("serving a, b after 100.")
    assert next(polls, None) is None


async def test_a_platform_that_cannot_fork_is_refused_with_the_other_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names the other commands, and nothing is started."""
    monkeypatch.setattr(development, "FORKSERVER", "none")
    ran = await command("dev", str(tmp_path))
    assert (ran.code, "waystation worker --embedded" in ran.err) == (2, True)


async def test_the_time_to_serve_counts_from_the_save(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The time includes the delay until `dev` notices that a file was saved."""
    (tmp_path / "agent.py").touch()

    async def is_polled_by(pid: int) -> bool:
        return True

    worker = StillWorker(Output(), tmp_path, [], is_polled_by=is_polled_by, started_at=0)
    serving = asyncio.create_task(worker.keep_serving())
    await worker.starts.get()
    (tmp_path / "agent.py").write_text("x = 1")
    await worker.starts.get()
    passed = time.time() - (tmp_path / "agent.py").stat().st_mtime
    worker._write('{"event": "worker.ready", "agents": ["a"]}', PROCESS)
    await worker.wait_until_ready()
    serving.cancel()
    match = re.search(r"after ([\d.]+) s", capsys.readouterr().err)
    assert match is not None
    assert float(match[1]) >= passed - 0.02  # the clock of the file system is coarser


@pytest.mark.parametrize("name", ["missing", "agent.py"])
async def test_a_missing_folder_is_reported_before_anything_starts(tmp_path: Path, name: str) -> None:
    """The error names the command that creates an agent. A file in place of a folder is reported in the same way."""
    (tmp_path / "agent.py").touch()
    ran = await command("dev", str(tmp_path / name))
    assert (ran.code, ran.out) == (2, "")
    assert "is not a folder with an agent" in ran.err
    assert "new NAME" in ran.err
