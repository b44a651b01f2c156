"""Fixtures for tests of agents, found by pytest wherever Waystation is installed.

Nothing is loaded before a test asks for one. They are not asynchronous themselves, so they go with every plugin that
runs asynchronous tests. `-p no:waystation` leaves them out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from waystation.agents import BaseAgent
    from waystation.apps import App
    from waystation.client import Invocation
    from waystation.embedded import EmbeddedServer
    from waystation.replay import Recording
    from waystation.testing.environment import AgentEnvironment
    from waystation.testing.human import ScriptedHuman


@pytest.fixture(scope="session")
def waystation_server() -> Iterator[EmbeddedServer]:
    """A Temporal server, shared by all tests of the process; for it the extra `embedded` is needed."""
    from waystation.testing.environment import shared_server

    with shared_server() as server:
        yield server


@pytest.fixture(scope="session")
def waystation_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which large payloads are kept."""
    return tmp_path_factory.mktemp("waystation-store")


@pytest.fixture
def waystation_serve(
    waystation_server: EmbeddedServer, waystation_store: Path
) -> Callable[..., AbstractAsyncContextManager[AgentEnvironment]]:
    """Serve agents on the shared server: `async with waystation_serve(agent) as env:`.

    Afterwards every invocation that was started is replayed, and compared with what its workflow held; `verify=False`
    leaves that out. Other options are those of `AgentEnvironment`.
    """
    from waystation.testing.environment import serving

    def serve(*agents: BaseAgent | App, **options: Any) -> AbstractAsyncContextManager[AgentEnvironment]:
        return serving(*agents, **{"server": waystation_server, "store": waystation_store, **options})

    return serve


@pytest.fixture
def waystation_human() -> type[ScriptedHuman]:
    """Make somebody who answers what waits: `await waystation_human("approve").attend(invocation)`."""
    from waystation.testing.human import ScriptedHuman

    return ScriptedHuman


@pytest.fixture
def waystation_recording() -> Callable[[Invocation | Path | str], Awaitable[Recording]]:
    """Read what was recorded of an invocation, or what a file holds: `await waystation_recording(invocation)`."""
    from pathlib import Path

    from waystation.replay import Recording

    async def read(source: Invocation | Path | str) -> Recording:
        return await (Recording.read(source) if isinstance(source, Path | str) else Recording.of(source))

    return read
