"""One server for the session; one worker and one task queue for each test."""

import contextlib
import gc
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import structlog
from structlog.testing import capture_logs
from temporalio.worker._workflow import _WorkflowWorker

from waystation.agents import BaseAgent
from waystation.client.agent_client import Invocation
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment, FakeGemini, Replays, assert_invocation_holds, serving
from waystation.testing.fake_oauth import FakeOAuth
from waystation.testing.fake_openid import FakeOpenId

Serve: TypeAlias = Callable[..., contextlib.AbstractAsyncContextManager[AgentEnvironment]]

# Workers run in the process of the tests, some of which read standard output.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

# A shell has what it starts in the background ignore Ctrl-C, and programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays for good: a look at all of it takes long enough to seem a deadlock."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def busy_machine() -> Iterator[None]:
    """Give a workflow task longer than the SDK's 2 s before it counts as a deadlock: what else runs here may be much.

    There is no option for it but to have none, and then workflows run in the thread of the test.
    """
    begin = _WorkflowWorker.__init__

    def patiently(self: _WorkflowWorker, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self._deadlock_timeout_seconds = 30

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_WorkflowWorker, "__init__", patiently)
        yield


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[EmbeddedServer]:
    """A Temporal server, shared by all tests of this process."""
    async with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="session")
def payload_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where large payloads are kept: as long as the server, since one worker may go on with what another began."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged during a test, from warnings up."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with capture_logs() as entries:
        yield entries
    structlog.configure(**before)


@pytest.fixture
async def gemini() -> AsyncIterator[FakeGemini]:
    """A server with Gemini's rules."""
    async with FakeGemini() as gemini:
        yield gemini


@pytest.fixture
def provider() -> Iterator[FakeOAuth]:
    """A provider of logins with one client, and a calendar that only its tokens open."""
    with FakeOAuth() as provider:
        yield provider


@pytest.fixture(scope="session")
def openid() -> Iterator[FakeOpenId]:
    """An identity provider, for tests that do not change it."""
    with FakeOpenId() as provider:
        yield provider


@pytest.fixture
def own_openid() -> Iterator[FakeOpenId]:
    """An identity provider, for tests that do."""
    with FakeOpenId() as provider:
        yield provider


async def verify_tree(invocation: Invocation) -> None:
    """Replay an invocation and those it called as in production, and compare each with its projection."""
    await assert_invocation_holds(invocation, replays=Replays.PRODUCTION)


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
