"""One server for the session; one worker and one task queue for each test."""

import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.tiers import find_cluster, is_full
from verification.cluster.temporal_cluster import create_namespace
from waystation.agents import BaseAgent
from waystation.client import Session, connect
from waystation.client.agent_client import Invocation
from waystation.core.contract import Settings, WorkflowSettings
from waystation.core.scope_state import app_scope, user_scope
from waystation.embedded import EmbeddedServer
from waystation.history.history_fetch import describe_workflow
from waystation.testing import AgentEnvironment, Replays, assert_invocation_holds, serving

Serve: TypeAlias = Callable[..., contextlib.AbstractAsyncContextManager[AgentEnvironment]]

FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every case of a matrix but the first as slow.

    Decisions are tested without a server, in `tests/unit`. Here, one case shows that they reach the engine.
    """
    seen: set[str] = set()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if FOLDER in item.path.parents and name in seen:
            item.add_marker(pytest.mark.slow)
        seen.add(name)


def server_at(address: str) -> EmbeddedServer:
    """Return a server that runs elsewhere under this address."""
    server = EmbeddedServer()
    server.address = address
    return server


@contextlib.asynccontextmanager
async def empty_server() -> AsyncIterator[EmbeddedServer]:
    """Run a server without workflows of other tests, or give them a namespace of their own on the shared cluster."""
    if address := find_cluster():
        namespace = f"test-{uuid.uuid4()}"
        await create_namespace(address, namespace)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("TEMPORAL_NAMESPACE", namespace)
            yield server_at(address)
        return
    async with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[EmbeddedServer]:
    """Return a Temporal server, shared by all tests of this process, or the cluster of `make test-cluster`."""
    if address := find_cluster():
        yield server_at(address)
        return
    async with EmbeddedServer() as server:
        yield server
        await assert_no_state_is_shared(server)


async def assert_no_state_is_shared(server: EmbeddedServer) -> None:
    """Check that no test wrote to state that others read: tests that write choose their own app or user."""
    temporal = await connect(address=server.address)
    shared = (app_scope("waystation"), user_scope("waystation", "user"), user_scope("waystation", "ann"))
    written = [scope for scope in shared if await describe_workflow(temporal, scope)]
    assert written == [], "give the test that writes there `app=env.client.task_queue`"


@pytest.fixture(scope="session", autouse=True)
def one_session_one_file() -> Iterator[None]:
    """Refuse a message to a session that a test of another file started on the same server.

    The session would wait for the worker of that test, which has ended.
    """
    files: dict[tuple[str, str, str], str] = {}
    start = Session._update_with_start

    async def start_own(session: Session, *arguments: Any) -> Any:
        file = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
        temporal = session.client.temporal
        owner = files.setdefault((temporal.service_client.config.target_host, temporal.namespace, session.id), file)
        assert owner == file, f"{owner} started the session {session.id}; give this one its own `session_id` or `app`"
        return await start(session, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "_update_with_start", start_own)
        yield


@pytest.fixture(scope="session")
def payload_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of large payloads, which lasts as long as the server, because several workers may read it."""
    return tmp_path_factory.mktemp("store")


async def verify_tree(invocation: Invocation, settings: WorkflowSettings | None = None) -> None:
    """Replay an invocation and its called agents as in production, and compare each with its projection."""
    await assert_invocation_holds(invocation, replays=Replays.PRODUCTION, settings=settings)


class Verification:
    """The checks of the invocations of one folder of tests, or of one file in the full suite.

    The first one is also replayed in the strict sandbox, which imports the engine again each time, at a cost of one
    second. Clocks and randomness are a property of the code, so few replays find them, and `make test-full` replays all
    kept histories there.
    """

    def __init__(self, place: Path, strictly_replayed: set[Path]) -> None:
        self._place = place
        self._strictly_replayed = strictly_replayed

    def check(self, settings: Settings) -> Callable[[Invocation], Awaitable[None]]:
        """Return a function that checks an invocation of a worker with these settings."""

        async def check(invocation: Invocation) -> None:
            await assert_invocation_holds(invocation, replays=self.next_replays(), settings=settings.workflow)

        return check

    def next_replays(self) -> Replays:
        """Return the settings of the next replay."""
        if self._place not in self._strictly_replayed:
            self._strictly_replayed.add(self._place)
            return Replays.STRICT
        return Replays.PRODUCTION


@pytest.fixture(scope="session")
def strictly_replayed() -> set[Path]:
    """Return the folders and files with one invocation that was replayed in the strict sandbox."""
    return set()


@pytest.fixture
def verification(request: pytest.FixtureRequest, strictly_replayed: set[Path]) -> Verification:
    """Return the checks of the invocations of one folder, or of one file in the full suite."""
    return Verification(request.path if is_full() else request.path.parent, strictly_replayed)


@pytest.fixture
def serve(server: EmbeddedServer, payload_store: Path, verification: Verification) -> Serve:
    """Serve agents on the shared server; `verify=False` leaves out the checks of every invocation afterward."""

    def serve(*agents: BaseAgent, **options: Any) -> contextlib.AbstractAsyncContextManager[AgentEnvironment]:
        if options.get("verify", True) is True:
            options["verify"] = verification.check(options.get("settings") or Settings())
        return serving(*agents, **{"server": server, "store": payload_store, **options})

    return serve
