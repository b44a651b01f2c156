"""The pytest plugin, and the one line that turns an incident into a test, in other projects."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.paths import HISTORIES, ROOT

PLUGIN = "waystation.testing.pytest_plugin"

AGENTS = """
import pytest
from waystation import Agent, FunctionTool
from waystation.testing import ScriptedModel, calls, says


def pay(amount: int) -> dict:
    return {"paid": amount}


@pytest.mark.asyncio
async def test_an_agent(waystation_serve, waystation_human, waystation_recording):
    model = ScriptedModel(calls(("pay", {"amount": 5})), says("Paid."))
    agent = Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with waystation_serve(agent) as env:
        invocation = await env.client.start("payer", "pay")
        await waystation_human("approve").attend(invocation)
        assert (await invocation.result()).text == "Paid."
        recording = await waystation_recording(invocation)
        assert recording.log.state.calls["fc-1"].response == {"paid": 5}


@pytest.mark.asyncio
async def test_another_agent_in_another_loop(waystation_serve):
    async with waystation_serve(Agent(name="greeter", model=ScriptedModel(says("Hi.")))) as env:
        assert (await (await env.client.start("greeter", "hi")).result()).text == "Hi."
"""
INCIDENTS = """
from waystation.testing import keeps_replaying

test_incidents = keeps_replaying("incidents")
"""


def ran(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder outside this project."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:xdist", *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent), "HOME": str(folder), **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_pytest_finds_the_installed_plugin() -> None:
    """The entry point has a name that `-p no:` accepts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"waystation": PLUGIN}


def test_a_project_that_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    """The plugin is loaded, but none of its requirements."""
    (tmp_path / "test_own.py").write_text(
        "import sys\n\n\ndef test_own():\n"
        "    assert 'waystation.testing.pytest_plugin' in sys.modules\n"
        "    assert not {'temporalio', 'pydantic', 'google.genai', 'rich.table'} & set(sys.modules)\n"
    )
    found = ran(tmp_path, "-p", PLUGIN, "-W", "error", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 passed" in found.stdout


def test_its_fixtures_serve_agents_and_people(tmp_path: Path) -> None:
    """All tests share one server, although each has its own event loop."""
    (tmp_path / "test_agents.py").write_text(AGENTS)
    found = ran(tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "2 passed" in found.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project that keeps an incident, in which an agent was called."""
    incidents = tmp_path / "incidents"
    incidents.mkdir()
    shutil.copy(HISTORIES / "confirmation-approved.json", incidents)
    (tmp_path / "test_incidents.py").write_text(INCIDENTS)
    return tmp_path


def test_one_line_keeps_an_incident(project: Path) -> None:
    """Each file is a test case with its name, and needs neither plugin nor server."""
    found = ran(project, "-vv", "-p", "no:waystation", "-p", "no:asyncio")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "test_incidents.py::test_incidents[confirmation-approved] PASSED" in found.stdout


def test_a_changed_incident_fails_in_the_words_of_agents(project: Path) -> None:
    """The message has the recorded and the current command, and no traceback."""
    file = project / "incidents" / "confirmation-approved.json"
    held = json.loads(file.read_text())
    types = [
        event["activityTaskScheduledEventAttributes"]["activityType"]
        for event in held["events"]
        if "activityTaskScheduledEventAttributes" in event
    ]
    next(kind for kind in types if kind["name"] == "clerk.pay")["name"] = "clerk.refund"
    file.write_text(json.dumps(held))
    found = ran(project)
    assert found.returncode == 1
    assert "confirmation-approved.json: recorded: call refund" in found.stdout
    assert "now: call pay(amount=5)" in found.stdout
    assert "Traceback" not in found.stdout
    assert "During handling" not in found.stdout


def test_a_file_that_is_not_a_history_fails_in_one_line(project: Path) -> None:
    """The message is one line, without a traceback into the reader's code."""
    (project / "incidents" / "confirmation-approved.json").write_text("cut")
    found = ran(project)
    assert found.returncode == 1
    assert "confirmation-approved.json' is not a history: it is not JSON." in found.stdout
    assert "def read(" not in found.stdout


def test_a_folder_without_incidents_is_an_error(project: Path) -> None:
    """A folder without incidents is an error, because a test without cases would always pass."""
    (project / "incidents" / "confirmation-approved.json").unlink()
    found = ran(project)
    assert found.returncode == 2
    assert "waystation history ID > FILE.json" in found.stdout
