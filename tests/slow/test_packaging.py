"""The built package installs one importable package and coexists with projects that have modules of the usual names."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from textwrap import dedent

import pytest

from tests.paths import ROOT
from tests.tiers import is_full
from waystation.version import waystation_version

PROJECT = {
    "tools/__init__.py": "",
    "tools/search.py": '''
        def lookup(word: str) -> str:
            """Look up a word."""
            return f"{word}: found"
    ''',
    "activities.py": """
        from temporalio import activity


        @activity.defn
        async def greet(name: str) -> str:
            return f"Hello, {name}"
    """,
    "workflows.py": """
        from datetime import timedelta

        from temporalio import workflow


        @workflow.defn
        class Greeting:
            @workflow.run
            async def run(self, name: str) -> str:
                return await workflow.execute_activity(
                    "greet", name, start_to_close_timeout=timedelta(seconds=10), result_type=str
                )
    """,
    "clerk/agent.py": """
        from tools.search import lookup
        from waystation.agents import Agent
        from waystation.testing import ScriptedModel, calls, says

        model = ScriptedModel(calls(("lookup", {"word": "tools"})), says("Looked up."))
        root_agent = Agent(name="clerk", model=model, tools=[lookup])
    """,
    "worker.py": """
        import asyncio

        from temporalio.client import Client
        from temporalio.worker import Worker

        from activities import greet
        from clerk.agent import root_agent
        from waystation import AgentClient
        from waystation.embedded import EmbeddedServer
        from waystation.worker import WORKER_OPTIONS, WaystationPlugin
        from workflows import Greeting


        async def main() -> None:
            async with EmbeddedServer() as server:
                plugin = WaystationPlugin([root_agent])
                client = await Client.connect(server.address, plugins=[plugin])
                own = {"workflows": [Greeting], "activities": [greet]}
                async with Worker(client, task_queue="waystation", **own, **WORKER_OPTIONS):
                    print(await client.execute_workflow(Greeting.run, "Dana", id="greeting", task_queue="waystation"))
                    print((await AgentClient(client).run("clerk", "Look up tools.")).text)


        asyncio.run(main())
    """,
}
"""A project as Temporal's documentation lays one out, with an agent."""
GREETED = {"Hello, Dana", "Looked up."}
"""The output of the project's worker, among its logs."""

OTHER = {
    "pyproject.toml": """
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"

        [project]
        name = "toolbelt"
        version = "1"

        [tool.hatch.build.targets.wheel]
        only-include = ["tools"]
    """,
    "tools/__init__.py": "raise AssertionError('the other distribution was imported')",
}
"""A distribution that installs a top-level package `tools`."""


def find_uv() -> str:
    """Return the path of uv, which `make` installs where there is none."""
    program = shutil.which("uv", path=f"{ROOT / '.uv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    assert program, "There is no uv; `make test` installs it."
    return program


def uv(*arguments: str | Path) -> None:
    """Run uv in the checkout."""
    subprocess.run([find_uv(), *arguments], check=True, cwd=ROOT)


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write files, and return their folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the wheel and the sdist, as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder)
    return folder


@dataclass(frozen=True)
class Installed:
    """An environment and a project that uses it."""

    environment: Path
    project: Path

    def pip(self, *arguments: str | Path) -> None:
        uv("pip", arguments[0], "--quiet", "--python", self.environment, *arguments[1:])

    def run(self, *command: str) -> str:
        """Run a program of the environment in the project's folder; return its output."""
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        program = self.environment / ("Scripts" if sys.platform == "win32" else "bin") / command[0]
        done = subprocess.run(
            [program, *command[1:]], cwd=self.project, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=["*.whl", "*.tar.gz"] if is_full() else ["*.whl"], ids=lambda name: name[2:])
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Installed:
    """Waystation installed from a file into an empty environment, beside a project."""
    [file] = built.glob(request.param)
    folder = tmp_path_factory.mktemp("installed")
    there = Installed(folder / "environment", write(folder / "project", PROJECT))
    uv("venv", "--quiet", "--python", sys.executable, there.environment)
    there.pip("install", "--constraint", ROOT / "requirements.lock", f"waystation[embedded] @ {file.as_uri()}")
    return there


def test_the_wheel_installs_only_waystation(built: Path) -> None:
    """A second top-level name could conflict with that of another package."""
    [wheel] = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {PurePosixPath(name).parts[0] for name in names} == {
        "waystation",
        f"waystation-{waystation_version()}.dist-info",
    }
    for module in (
        "tools/function_tool.py",
        "workflows/invocation.py",
        "activities/tool_caller.py",
        "examples/reimbursement/agent.py",
        "py.typed",
    ):
        assert f"waystation/{module}" in names


def test_the_sdist_unpacks_without_symbolic_links(built: Path) -> None:
    """Windows may have none: the files of the linked folders are below `waystation`."""
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert [member.name for member in members if member.issym() or member.islnk()] == []
    assert f"waystation-{waystation_version()}/waystation/tools/function_tool.py" in {member.name for member in members}


def test_agents_run_next_to_modules_of_the_usual_names(installed: Installed) -> None:
    """A project keeps its own `tools`, `workflows`, `activities` and `worker`, and its worker runs both."""
    assert set(installed.run("python", "worker.py").splitlines()) >= GREETED
    installed.run("waystation", "worker", "check", "--agents", ".")


def test_a_distribution_with_tools_can_be_installed_and_removed(installed: Installed, tmp_path: Path) -> None:
    """Installing and removing a distribution with `tools` changes no file of Waystation."""
    installed.pip("install", write(tmp_path, OTHER))
    assert set(installed.run("python", "worker.py").splitlines()) >= GREETED
    installed.pip("uninstall", "toolbelt")
    assert set(installed.run("python", "worker.py").splitlines()) >= GREETED
