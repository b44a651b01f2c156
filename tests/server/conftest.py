"""One server for the session; one worker and one task queue for each test."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from waystation.agents import BaseAgent
from waystation.client.agent_client import Invocation
from waystation.core import WorkflowSettings
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment, Replays, assert_invocation_holds, serving

Serve: TypeAlias = Callable[..., contextlib.AbstractAsyncContextManager[AgentEnvironment]]


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[EmbeddedServer]:
    """A Temporal server, shared by all tests of this process."""
    async with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="session")
def payload_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where large payloads are kept: as long as the server, since one worker may go on with what another began."""
    return tmp_path_factory.mktemp("store")


async def verify_tree(invocation: Invocation, settings: WorkflowSettings | None = None) -> None:
    """Replay an invocation and those it called as in production, and compare each with its projection."""
    await assert_invocation_holds(invocation, replays=Replays.PRODUCTION, settings=settings)


class Verification:
    """The checks of the invocations that the tests of one file start.

    The first one is also replayed in the strict sandbox. Clocks and randomness are a property of the code, so once in
    each file finds them, and the kept histories are all replayed there. The others are not replayed a second time when
    their worker cached nothing: it replayed them at each workflow task.
    """

    def __init__(self) -> None:
        self._is_first = True

    def check(self, max_cached_workflows: int) -> Callable[[Invocation], Awaitable[None]]:
        """Return the check of invocations whose worker cached this many workflows."""

        async def check(invocation: Invocation) -> None:
            await assert_invocation_holds(invocation, replays=self.next_replays(max_cached_workflows))

        return check

    def next_replays(self, max_cached_workflows: int) -> Replays:
        """Return how the next history is replayed."""
        if self._is_first:
            self._is_first = False
            return Replays.STRICT
        return Replays.PRODUCTION if max_cached_workflows else Replays.NONE


@pytest.fixture(scope="module")
def verification() -> Verification:
    """The checks of the invocations of one file."""
    return Verification()


@pytest.fixture
def serve(server: EmbeddedServer, payload_store: Path, verification: Verification) -> Serve:
    """Serve agents on the shared server; `verify=False` leaves out the checks of every invocation afterwards."""

    def serve(*agents: BaseAgent, **options: Any) -> contextlib.AbstractAsyncContextManager[AgentEnvironment]:
        if options.get("verify", True) is True:
            options["verify"] = verification.check(options.get("max_cached_workflows", 0))
        return serving(*agents, **{"server": server, "store": payload_store, **options})

    return serve
