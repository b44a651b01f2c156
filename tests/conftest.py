"""One server for the session; one worker and one task queue for each test."""

import contextlib
import gc
import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import structlog
from structlog.testing import capture_logs
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle

from waystation.agents import BaseAgent
from waystation.client.agent_client import AgentClient, Invocation
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment, FakeGemini, assert_projection_matches, assert_replays
from waystation.testing.fake_oauth import FakeOAuth
from waystation.testing.fake_openid import FakeOpenId

Serve: TypeAlias = Callable[..., contextlib.AbstractAsyncContextManager[AgentEnvironment]]

_queues = itertools.count()

# Workers run in the process of the tests, some of which read standard output.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays for good: a look at all of it takes long enough to seem a deadlock."""
    gc.collect()
    gc.freeze()


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


class Started(Interceptor):
    """Notes which workflows a client starts."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Stand before the client's own calls."""
        started = self.ids

        class Noting(OutboundInterceptor):
            async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
                started.append(input.id)
                return await super().start_workflow(input)

        return Noting(next)


@pytest.fixture
def serve(server: EmbeddedServer, payload_store: Path) -> Serve:
    """Serve agents on the shared server; afterwards every invocation is replayed and compared with its projection."""

    @contextlib.asynccontextmanager
    async def serving(*agents: BaseAgent, verify: bool = True, **options: Any) -> AsyncIterator[AgentEnvironment]:
        queue = options.pop("task_queue", f"test-{os.getpid()}-{next(_queues)}")
        options.setdefault("store", payload_store)
        started = Started()
        async with AgentEnvironment(*agents, server=server, task_queue=queue, **options) as env:
            config = env.temporal.config()
            config["interceptors"] = [started]
            env.client = AgentClient(Client(**config), task_queue=queue, blobs=env.client.blobs)
            yield env
            if verify:
                for workflow_id in started.ids:
                    await verify_tree(env.client.invocation(workflow_id))

    return serving


async def verify_tree(invocation: Invocation) -> None:
    """Replay all runs of an invocation and of those it called, and compare each with what its workflow holds."""
    histories = await invocation.histories()
    for history in histories:
        await assert_replays(history, invocation.converter)
    await assert_projection_matches(invocation)
    for event in (event for history in histories for event in history.events):
        child = event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
        if child:
            await verify_tree(invocation.client.invocation(child))
