"""Pruning removes only payloads that no history, invocation or conversation needs."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import (
    Client,
    Interceptor,
    ListWorkflowsInput,
    OutboundInterceptor,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    WorkflowExecutionAsyncIterator,
)
from temporalio.converter import DataConverter, PayloadCodec

from tests.programs import command
from tests.server.sessions.conftest import settled_events
from tests.server.sessions.test_conversation import words
from tests.server.sessions.test_sending import echo
from tests.server.workflows.test_codec import Veil
from tests.server.workflows.test_continuing import ask
from tests.steps import approve_and_finish, start_and_wait, wait_until
from waystation.agents import Agent
from waystation.artifacts import ObjectStoreArtifactService
from waystation.client import AgentClient, Pruned, prune_stores, store_pruning
from waystation.core.contract import WORKFLOW
from waystation.embedded import EmbeddedServer
from waystation.storage import Blobs, offloading
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools import CallbackContext, ToolContext
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.services import Services
from waystation.worker import create_worker

LARGE = "x" * 500_000
PART = "x" * 60_000
"""Two of these are more than a run of a session carries inline."""
NOW = timedelta(0)


@pytest.fixture(scope="module")
async def own_server() -> AsyncIterator[EmbeddedServer]:
    """Run a server only for the tests of this file. It deletes histories at once, not after 30 seconds."""
    intervals = ("history.transferProcessorUpdateAckInterval", "history.visibilityProcessorUpdateAckInterval")
    async with EmbeddedServer(dynamic_config=dict.fromkeys(intervals, "100ms")) as server:
        yield server


async def prune(client: AgentClient, blobs: Blobs, keep: timedelta = NOW, *, dry_run: bool = False) -> Pruned:
    """Prune the store of an environment."""
    return await prune_stores(client.temporal, blobs, keep=keep, dry_run=dry_run)


class Listing(Interceptor, OutboundInterceptor):
    """Lists only some workflows, like a server that has deleted the others. The dev server takes half a minute for
    that.
    """

    def __init__(self, query: str) -> None:
        self._query = query

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Intercept the requests of a client."""
        self.next = next
        return self

    def list_workflows(self, input: ListWorkflowsInput) -> WorkflowExecutionAsyncIterator:
        """List the workflows that match the query."""
        return self.next.list_workflows(replace(input, query=self._query))


def listing(client: AgentClient, query: str) -> AgentClient:
    """Return a client whose server lists only some workflows."""
    temporal = Client(**(client.temporal.config() | {"interceptors": [Listing(query)]}))
    return AgentClient(temporal, task_queue=client.task_queue, blobs=client.blobs)


async def is_one(client: Client, query: str) -> bool:
    """Return whether exactly one workflow matches a query."""
    return (await client.count_workflows(query)).count == 1


def large_asker(letter: str) -> Agent:
    """Return an agent whose tool returns a large result of this letter, and which then waits for an answer."""

    def read() -> str:
        """Read something large."""
        return letter * 500_000

    model = ScriptedModel(calls(("read", {})), calls(("ask", {"what": "now?"})), says("Asked."), says("Done."))
    return Agent(name="reader", model=model, tools=[read, LongRunningFunctionTool(ask)])


@pytest.mark.slow
async def test_results_of_an_open_invocation_are_kept(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """A result is kept at any age. When its history is gone, it is moved, and later removed."""
    blobs = Blobs(tmp_path)
    async with AgentEnvironment(large_asker("a"), server=own_server, store=tmp_path, blobs=blobs) as env:
        invocation = await start_and_wait(env.client.start("reader", "go"), "fc-2")
        [stored] = await blobs.list_stored()
        pruned = await prune(env.client, blobs)
        assert (pruned.kept, pruned.moved, pruned.removed) == (1, 0, 0)
        assert (await approve_and_finish(invocation, "fc-2")).text == "Done."
        assert (await prune(env.client, blobs)).kept == 1
        left = listing(env.client, f"WorkflowId != '{invocation.id}'")
        assert (await prune(left, blobs, dry_run=True)).moved == 1
        assert (await prune(left, blobs, timedelta(days=1))).kept == 1
        assert (await prune(left, blobs)).moved == 1
        assert await blobs.get(stored.digest)
        assert (await prune(left, blobs)).removed == 1
        assert await blobs.list_stored() == []


async def test_a_payload_in_use_returns_from_the_trash(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """A worker may refer to a payload while it is moved. It stays readable, and the next run moves it back."""
    blobs = Blobs(tmp_path)
    async with AgentEnvironment(large_asker("b"), server=own_server, store=tmp_path, blobs=blobs) as env:
        invocation = await start_and_wait(env.client.start("reader", "go"), "fc-2")
        [stored] = await blobs.list_stored()
        await blobs.discard(stored.digest)
        assert (await approve_and_finish(invocation, "fc-2")).text == "Done."
        pruned = await prune(env.client, blobs)
        assert (pruned.kept, pruned.removed) == (1, 0)
        assert [blob.is_trash for blob in await blobs.list_stored()] == [False]


@pytest.mark.parametrize("codec", [None, Veil()], ids=["plain", "codec"])
async def test_a_long_conversation_keeps_its_parts_at_any_age(
    own_server: EmbeddedServer, tmp_path: Path, codec: PayloadCodec | None
) -> None:
    """The conversation still needs them after the server has deleted the histories of earlier messages and runs."""
    blobs = Blobs(tmp_path)
    # What a run carries to the next is offloaded, too, so the references are in payloads.
    converter = offloading(blobs, over=2_000, converter=DataConverter(payload_codec=codec))
    temporal = await Client.connect(own_server.address, data_converter=converter)
    client = AgentClient(temporal, task_queue=f"long-{codec is None}", blobs=blobs)
    async with create_worker(temporal, [echo()], task_queue=client.task_queue, blobs=blobs):
        session = client.session(agent="clerk", session_id=client.task_queue, user_id="ann")
        session.given = session.given.model_copy(update={"cut_after": 2})
        for number in range(3):  # after an even number, the session might continue as new between the two runs
            await session.say(f"{number}{PART}")
        spoken = [word[:10] for word in words(await settled_events(session))]
        digest = await blobs.put(b"nothing refers to these bytes")
        query = f"WorkflowId = '{session.id}' AND ExecutionStatus = 'Running'"
        await wait_until(lambda: is_one(temporal, query), "one run")
        first, second = [await prune(listing(client, query), blobs) for _ in range(2)]
        assert first.histories == 1
        assert first.kept == second.kept >= 1
        assert second.removed == first.moved > 1
        assert digest not in [blob.digest for blob in await blobs.list_stored()]
        assert [word[:10] for word in words(await session.events())] == spoken
        assert (await session.say("still there?")).text == "heard still there?"


async def test_the_message_of_a_schedule_is_kept(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """The message of a schedule is kept, although no history has it before the first start."""
    client = await AgentClient.connect(address=own_server.address, store=tmp_path)
    arguments = {"agent": "clerk", "message": LARGE}
    action = ScheduleActionStartWorkflow(WORKFLOW, arguments, id="scheduled", task_queue="none")
    handle = await client.temporal.create_schedule("weekly", Schedule(action=action, spec=ScheduleSpec()))
    try:
        assert len(await client.blobs.list_stored()) == 1
        pruned = await prune(client, client.blobs)
        assert (pruned.kept, pruned.moved) == (1, 0)
    finally:
        await handle.delete()


@pytest.mark.parametrize("is_callback", [False, True], ids=["by-a-tool", "by-a-callback"])
async def test_artifacts_of_deleted_invocations_are_removed(
    own_server: EmbeddedServer, tmp_path: Path, is_callback: bool
) -> None:
    """Artifacts of users and of existing sessions and invocations are kept, whatever the ID of a session is."""
    artifacts = ObjectStoreArtifactService(tmp_path / "artifacts")

    async def save(tool_context: CallbackContext | ToolContext) -> None:
        """Save one artifact for this conversation and one for the user."""
        await tool_context.save_artifact("user:logo.png", {"text": "logo"})
        await tool_context.save_artifact("report.txt", {"text": "report"})

    async def saving(callback_context: CallbackContext) -> None:
        await save(callback_context)

    if is_callback:
        agent = Agent(name="saver", model=ScriptedModel(*[says("Saved.")] * 4), after_agent_callback=saving)
    else:
        model = ScriptedModel(*[calls(("save", {})), says("Saved.")] * 4)
        agent = Agent(name="saver", model=model, tools=[save])
    services = Services(artifacts=artifacts)
    async with AgentEnvironment(agent, server=own_server, services=services, store=tmp_path / "store") as env:
        sessions = (None, None, "s1", "ours-0123456789ab")
        started = []
        for id in sessions:
            started.append(await env.client.start("saver", "go", session_id=id, user_id="ann"))
            await started[-1].result()
        gone = " AND ".join(f"WorkflowId != '{started[nth].id}'" for nth in (0, 2, 3))
        left = listing(env.client, gone)
        pruned = await prune_stores(left.temporal, env.client.blobs, artifacts, keep=NOW)
        assert pruned.artifacts == 1
        sessions_left = {session for _, _, session in await artifacts.list_sessions()}
        assert sessions_left == {started[1].id, "s1", "ours-0123456789ab"}
        names = await artifacts.list_artifact_keys(app_name="waystation", user_id="ann", session_id="s1")
        assert names == ["report.txt", "user:logo.png"]


async def test_the_histories_of_all_namespaces_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The histories of all namespaces are read, over all pages of the list of namespaces."""
    monkeypatch.setattr(store_pruning, "NAMESPACES_PAGE", 1)
    async with EmbeddedServer() as server:
        client = await Client.connect(server.address)
        for name in ("first", "second"):
            await client.workflow_service.register_namespace(
                RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=Duration(seconds=86_400))
            )
        assert (await prune_stores(client, Blobs(tmp_path))).namespaces == ["default", "first", "second"]


async def test_the_command_reports_its_work(own_server: EmbeddedServer, tmp_path: Path) -> None:
    """The output names the namespaces whose histories were read."""
    await Blobs(tmp_path).put(b"nothing refers to these bytes")
    where = ("--address", own_server.address, "--store", str(tmp_path))
    ran = await command(*where, "store", "prune", "--keep", "0s", "--dry-run")
    assert ran.code == 0, ran
    assert "histories in default: 0 payloads kept, 1 would be moved to the trash, 0 would be removed" in ran.out
    artifacts = ("--artifacts", str(tmp_path / "artifacts"))
    ran = await command(*where, "store", "prune", *artifacts, "--keep", "0s", "--json")
    assert json.loads(ran.out)["moved"] == 1
