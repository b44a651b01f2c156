"""The command `waystation new` creates a package that a worker serves without an API key."""

import os
from pathlib import Path

import pytest

from tests.programs import command
from waystation.agents import LlmAgent
from waystation.worker.main import check


async def test_the_new_package_has_an_agent_a_demo_model_and_a_test(tmp_path: Path) -> None:
    """The agent passes the check, and the output names the files and the next commands."""
    ran = await command("new", "stationery_agent", "--in", str(tmp_path))
    assert ran.code == 0
    assert "dev " in ran.out
    registry, problems = check([tmp_path])
    assert problems == []
    root = registry.roots["stationery_agent"]
    assert isinstance(root.agent, LlmAgent)
    assert root.demo_model is not None
    compile((tmp_path / "stationery_agent" / "test_agent.py").read_text(), "test_agent.py", "exec")


NOT_VALID = ("", "a-b", "1a", "class", "user", "a/b", "ä", "../x")
HIDING = ("json", "sys", "colorsys", "google", "temporalio", "pytest", "waystation")


@pytest.mark.parametrize(
    ("name", "problem"),
    [*((name, "is not a valid name") for name in NOT_VALID), *((name, "would hide") for name in HIDING)],
)
async def test_a_name_that_cannot_be_a_package_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    """Nothing is created under an invalid name. A folder named `json`, for example, would hide Python's module."""
    ran = await command("new", "--in", str(tmp_path), "--", name)
    assert (ran.code, f"{name!r} {problem}" in ran.err, os.listdir(tmp_path)) == (2, True, [])


async def test_an_existing_folder_is_kept(tmp_path: Path) -> None:
    """The command does not write into a folder that exists."""
    (tmp_path / "mine").mkdir()
    ran = await command("new", "mine", "--in", str(tmp_path))
    assert (ran.code, "exists" in ran.err) == (2, True)
