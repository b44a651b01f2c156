"""Pytest fixtures for testing agents, which are available wherever Waystation is installed.

Nothing is loaded until a test uses a fixture. The fixtures are synchronous, so they work with every pytest plugin for
async tests. The option `-p no:waystation` disables them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from waystation import replay, testing  # their names load on first use

if TYPE_CHECKING:
    from waystation import client
    from waystation.agents import BaseAgent
    from waystation.apps import App
    from waystation.embedded import EmbeddedServer
    from waystation.project_file import Project
    from waystation.testing.web_client import WebClient


@pytest.fixture(scope="session")
def waystation_server() -> Iterator[EmbeddedServer]:
    """A Temporal server that all tests in the process share. It requires the extra `embedded`."""
    from waystation.testing.environment import shared_server

    with shared_server() as server:
        yield server


@pytest.fixture(scope="session")
def waystation_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where large payloads are stored."""
    return tmp_path_factory.mktemp("waystation-store")


@pytest.fixture
def waystation_project(request: pytest.FixtureRequest) -> Project | None:
    """The project file in the folder of the test, or in the nearest folder above it."""
    from waystation.project_file import load_project

    return load_project(request.path.parent)


@pytest.fixture
def waystation_clock() -> testing.Clock:
    """The clock of a test, which `env.skip(days=3)` sets forward, for workers and for people."""
    return testing.Clock()


@pytest.fixture
def waystation_serve(
    waystation_server: EmbeddedServer,
    waystation_store: Path,
    waystation_clock: testing.Clock,
    request: pytest.FixtureRequest,
) -> Callable[..., AbstractAsyncContextManager[testing.AgentEnvironment]]:
    """Serve agents on the shared server: `async with waystation_serve(agent) as env:`.

    Without agents, those of the project file are served: `async with waystation_serve(model="demo") as env:`. Its other
    settings do not apply, because tests must not notify people or write to the stores of workers.

    At the end, every started invocation is replayed and compared with its workflow's state, unless `verify=False`. The
    other options are the same as for `AgentEnvironment`.
    """

    def serve(*agents: BaseAgent | App, **options: Any) -> AbstractAsyncContextManager[testing.AgentEnvironment]:
        from waystation.testing.environment import load_agents

        served = agents or [load_agents(request.getfixturevalue("waystation_project"))]
        defaults = {"server": waystation_server, "store": waystation_store, "clock": waystation_clock}
        return testing.serving(*served, **{**defaults, **options})

    return serve


@pytest.fixture
def waystation_human() -> type[testing.ScriptedHuman]:
    """The class of scripted approvers: `await waystation_human("approve").attend(invocation)`."""
    return testing.ScriptedHuman


@pytest.fixture
def waystation_people(waystation_clock: testing.Clock) -> testing.People:
    """People for workers with `identity=waystation_people.identity`: `waystation_people("dana", roles=["manager"])`.

    It requires the extra `identity`.
    """
    return testing.People(clock=waystation_clock)


@pytest.fixture
def waystation_web() -> type[WebClient]:
    """The web application for a logged-in person: `async with waystation_web(env, dana) as web:`.

    It requires the extra `testing`.
    """
    try:
        from waystation.testing.web_client import WebClient
    except ModuleNotFoundError as error:
        problem = f"waystation_web needs {error.name!r}. Install it with: pip install 'waystation[testing]'"
        raise ModuleNotFoundError(problem, name=error.name) from None
    return WebClient


@pytest.fixture
def waystation_machine() -> type[testing.Machine]:
    """The class of machines: `await waystation_machine("claims").respond(invocation, {"status": "paid"})`.

    For workers with the identity of `waystation_people`, use `waystation_people.machine("claims")`.
    """
    return testing.Machine


@pytest.fixture
def waystation_recording() -> Callable[[client.Invocation | Path | str], Awaitable[replay.Recording]]:
    """A function that reads the recording of an invocation or a file: `await waystation_recording(invocation)`."""

    async def read(source: client.Invocation | Path | str) -> replay.Recording:
        return await (replay.Recording.read(source) if isinstance(source, Path | str) else replay.Recording.of(source))

    return read
