"""`waystation dev` notices which files change, and shows what the worker logs."""

from pathlib import Path

import pytest

from tests.programs import command
from waystation.cli import development
from waystation.cli.development import DevelopmentWorker, _find_times
from waystation.cli.output import Output


def test_files_of_agents_are_watched(tmp_path: Path) -> None:
    """Code, settings and prompts count; environments, caches, hidden folders and other files do not."""
    watched = ["agent.py", "sub/prompt.md", "sub/settings.yaml"]
    others = [".git/a.py", "__pycache__/a.py", "env/lib/a.py", "node_modules/a.json", "data.db"]
    for name in [*watched, *others, "env/pyvenv.cfg"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(_find_times(tmp_path)) == [str(tmp_path / name) for name in watched]


async def test_mistakes_and_output_of_tools_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Problems are shown with their place; ordinary log lines are not, and other lines are shown as they are."""
    worker = DevelopmentWorker(Output(), tmp_path, [])
    for line in (
        '{"event": "agent.invalid", "level": "error", "place": "agent.py", "problem": "It has no name."}',
        '{"event": "tool_call.completed", "level": "info", "tool": "pay"}',
        '{"event": "worker.ready", "level": "info", "agents": ["a", "b"]}',
        "printed by a tool \x1b[2J",
    ):
        worker._write(line)
    shown = capsys.readouterr()
    assert shown.out == "agent.invalid: agent.py: It has no name.\nprinted by a tool \\x1b[2J\n"
    assert shown.err.startswith("serving a, b after ")
    assert await worker.wait_until_ready() == ["a", "b"]


async def test_a_platform_that_cannot_fork_is_refused_with_the_other_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is started."""
    monkeypatch.setattr(development, "FORKSERVER", "none")
    ran = await command("dev", str(tmp_path))
    assert (ran.code, "waystation worker --embedded" in ran.err) == (2, True)
