"""The examples keep their promises when a worker is killed: real processes, killed during a wait."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from examples.calendar_login.provider import FakeOAuth
from tests.paths import EXAMPLES
from tests.server.conftest import verify_tree
from tests.server.examples.conftest import answered, called, texts
from tests.steps import wait_for_calls, wait_until
from waystation.auth.credential_service.encrypted_file_credential_service import EncryptedFileCredentialService
from waystation.cli.demo import WorkerProcess
from waystation.client.agent_client import AgentClient, Invocation
from waystation.embedded import EmbeddedServer

Worker: TypeAlias = Callable[[], WorkerProcess]

_queues = itertools.count()


@pytest.fixture
def queue() -> str:
    """Return a separate task queue."""
    return f"examples-{os.getpid()}-{next(_queues)}"


@pytest.fixture
async def client(server: EmbeddedServer, queue: str) -> AgentClient:
    """Return a client of that queue."""
    return await AgentClient.connect(address=server.address, task_queue=queue)


@pytest.fixture
def worker(server: EmbeddedServer, queue: str, tmp_path: Path) -> Worker:
    """Return a further worker process of the examples."""

    def make() -> WorkerProcess:
        stores = [f"--{name}={tmp_path / name}" for name in ("artifacts", "memory", "credentials")]
        options = ("--agents", str(EXAMPLES), "--model", "demo", "--address", server.address, "--task-queue", queue)
        return WorkerProcess(*options, *stores)

    return make


async def test_reports_without_a_running_worker_are_not_lost(client: AgentClient, worker: Worker) -> None:
    """The ticket is opened once and closed."""
    async with worker() as first:
        invocation = await client.start("ticket_agent", "The printer smells burnt")
        await wait_until(lambda: _spoken(invocation), "the first sentence")
        await wait_for_calls(invocation, "fc-1")
        await first.kill()
    await invocation.answer("progress", "fc-1", response={"status": "assigned"}, wake=False, signal=True)
    await invocation.answer("respond", "fc-1", response={"status": "closed"}, signal=True)
    async with worker():
        assert (await invocation.result()).text == "[demo model] closed: no details."
        events = [event async for event in invocation.events()]
        await verify_tree(invocation)
    assert [name for name, _ in called(events)] == ["create_ticket"]
    assert [answer["status"] for answer in answered(events)] == ["open", "assigned", "closed"]


async def test_a_login_continues_under_the_same_link(
    client: AgentClient, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login continues under the same link, although the worker that showed the link no longer exists."""
    with FakeOAuth(client_id="waystation-example", client_secret="known-to-everyone") as provider:
        monkeypatch.setenv("CALENDAR_URL", provider.url)
        async with worker() as first:
            invocation = await client.start("calendar_agent", "What is on today?")
            (call,) = await wait_for_calls(invocation, "fc-1")
            await first.kill()
        link = (call.payload or {})["exchangedAuthCredential"]["oauth2"]["authUri"]
        async with worker():
            store = EncryptedFileCredentialService(tmp_path / "credentials")
            await invocation.authorize(store=store, auth_response_uri=provider.log_in(link))
            assert (await invocation.result()).text == "[demo model] In the calendar: dentist."
            await verify_tree(invocation)


async def _spoken(invocation: Invocation) -> list[str]:
    return texts([event async for event in invocation.events(follow=False)])
