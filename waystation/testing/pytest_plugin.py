"""Pytest fixtures for tests of agents, available wherever Waystation is installed.

Nothing is loaded before a test uses one. The fixtures are synchronous, so they work with every plugin for asynchronous
tests. `-p no:waystation` disables them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from waystation import client, replay, testing  # their names load on first use

if TYPE_CHECKING:
    from waystation.agents import BaseAgent
    from waystation.apps import App
    from waystation.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def waystation_server() -> Iterator[EmbeddedServer]:
    """A Temporal server, shared by all tests of the process. Needs the extra `embedded`."""
    from waystation.testing.environment import shared_server

    with shared_server() as server:
        yield server


@pytest.fixture(scope="session")
def waystation_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of large payloads."""
    return tmp_path_factory.mktemp("waystation-store")


@pytest.fixture
def waystation_serve(
    waystation_server: EmbeddedServer, waystation_store: Path
) -> Callable[..., AbstractAsyncContextManager[testing.AgentEnvironment]]:
    """Serve agents on the shared server: `async with waystation_serve(agent) as env:`.

    At the end, every started invocation is replayed and compared with its workflow's state, except with
    `verify=False`. Other options are those of `AgentEnvironment`.
    """

    def serve(*agents: BaseAgent | App, **options: Any) -> AbstractAsyncContextManager[testing.AgentEnvironment]:
        return testing.serving(*agents, **{"server": waystation_server, "store": waystation_store, **options})

    return serve


@pytest.fixture
def waystation_human() -> type[testing.ScriptedHuman]:
    """Make a scripted approver: `await waystation_human("approve").attend(invocation)`."""
    return testing.ScriptedHuman


@pytest.fixture
def waystation_recording() -> Callable[[client.Invocation | Path | str], Awaitable[replay.Recording]]:
    """Read the recording of an invocation or of a file: `await waystation_recording(invocation)`."""

    async def read(source: client.Invocation | Path | str) -> replay.Recording:
        return await (replay.Recording.read(source) if isinstance(source, Path | str) else replay.Recording.of(source))

    return read
