"""Payloads that are too large for a history are stored outside it, and a failing store repeats no effect."""

from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.converter import StorageDriverClaim, StorageDriverRetrieveContext

from tests.server.conftest import Serve
from tests.steps import (
    approve_and_finish,
    find_stuck_tasks,
    list_files,
    run,
    start_and_finish,
    start_and_wait,
    tool_responses,
    wait_for_ignored_answers,
    wait_until_quiet,
)
from waystation.agents import Agent
from waystation.client.agent_client import AgentClient
from waystation.core.contract import WORKFLOW
from waystation.core.errors import InvalidInput, NotReplayable, StoreFailed
from waystation.embedded import EmbeddedServer
from waystation.replay import replay
from waystation.storage import UNREADABLE, Blobs
from waystation.storage.driver import INLINE_LIMIT, BlobDriver, is_reference, offloading, retrieve_payloads
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.worker import announce_agents

REFERENCE = "temporal.api.sdk.v1.ExternalStorageReference"


def reference(data: bytes, encoding: bytes = b"json/protobuf") -> RawValue:
    """Return a payload that is a reference."""
    return RawValue(Payload(metadata={"encoding": encoding, "messageType": REFERENCE.encode()}, data=data))


def marked(encoding: bytes, **metadata: bytes) -> RawValue:
    """Return a payload that the SDK takes for an encoded reference."""
    marks = {"encoding": encoding, "__temporal_external_storage_reference": b"true"}
    return RawValue(Payload(metadata=marks | metadata, data=b"{}"))


async def test_a_result_of_20_mb_reaches_the_model_and_is_not_in_the_history(serve: Serve) -> None:
    """The tool runs once, and the history has a reference and can be replayed."""
    ran: list[int] = []

    def read() -> str:
        ran.append(1)
        return "x" * 20_000_000

    model = ScriptedModel(calls(("read", {})), says("Read."))
    async with serve(Agent(name="reader", model=model, tools=[read])) as env:
        invocation = await env.client.start("reader", "read")
        assert (await invocation.result()).text == "Read."
        assert (ran, len(tool_responses(model.requests[1])[0]["result"])) == ([1], 20_000_000)
        assert sum(event.ByteSize() for event in (await invocation.history()).events) < 20_000


async def test_a_message_of_3_mb_reaches_the_model(serve: Serve) -> None:
    """The client offloads a message over the server's limit."""
    model = ScriptedModel(says("Heard."))
    assert (await run(serve(Agent(name="listener", model=model)), "listener", "x" * 3_000_000)).text == "Heard."


@pytest.mark.parametrize(("size", "error_type"), [(500_000, None), (3_000_000, "StoreFailed")])
async def test_a_broken_store_is_reported_to_the_model_and_the_tool_runs_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, size: int, error_type: str | None
) -> None:
    """Small results enter the history; larger ones become an error outcome, because a failed activity would retry."""

    async def refuse(self: Blobs, data: bytes) -> str:
        raise StoreFailed(self.files.place, "no space left.")

    ran: list[int] = []

    def read() -> str:
        ran.append(1)
        return "x" * size

    monkeypatch.setattr(Blobs, "put", refuse)
    model = ScriptedModel(calls(("read", {})), says("Done."))
    async with serve(Agent(name="reader", model=model, tools=[read])) as env:
        assert (await env.client.run("reader", "read")).text == "Done."
        assert (ran, tool_responses(model.requests[1])[0].get("error_type")) == ([1], error_type)


FORGED: dict[str, Any] = {
    "an unknown digest": reference(b'{"driverName": "waystation", "claimData": {"digest": "' + b"a" * 64 + b'"}}'),
    "a path": reference(b'{"driverName": "waystation", "claimData": {"digest": "../../etc/passwd"}}'),
    "no claim": reference(b'{"driverName": "waystation"}'),
    "an unknown driver": reference(b'{"driverName": "s3", "claimData": {"key": "x"}}'),
    "no reference": reference(b'{"driverName": 5'),
    "an old form": reference(b"[]", b"json/external-storage-reference"),
    "a mark": marked(b"json/plain"),
    "a mark on an invalid reference": marked(b"json/plain", messageType=REFERENCE.encode()),
}


async def test_a_forged_reference_blocks_nothing(serve: Serve) -> None:
    """A forged reference in a signal is recorded and ignored; the invocation continues."""
    model = ScriptedModel(calls(("ask", {})), says("Asked."), says("Done."))

    def ask() -> dict[str, str]:
        """Wait for an answer."""
        return {"status": "pending"}

    async with serve(Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask)])) as env:
        invocation = await start_and_wait(env.client.start("asker", "go"), "fc-1")
        for number, (form, reference) in enumerate(FORGED.items(), 1):
            await invocation.handle.signal("answer", reference)
            assert len(await wait_for_ignored_answers(invocation, number)) == number, form
        assert (await approve_and_finish(invocation)).text == "Done."


async def test_a_missing_store_fails_only_the_workflow_task(serve: Serve, tmp_path: Path) -> None:
    """A worker with the right store can continue. Readers get the store's name, and never an empty result."""

    def read() -> str:
        return "x" * 500_000

    model = ScriptedModel(calls(("read", {})), says("Read."))
    async with serve(Agent(name="reader", model=model, tools=[read])) as env:
        invocation = await start_and_finish(env.client.start("reader", "read"))
        other = await AgentClient.connect(address=env.server.address, store=tmp_path)
        with pytest.raises(StoreFailed, match=r"does not have .*--store"):
            await other.invocation(invocation.id).log()
        with pytest.raises(NotReplayable, match="the store does not have"):
            await replay(await invocation.history(), converter=other.temporal.data_converter)


async def test_a_missing_result_names_the_store(serve: Serve, tmp_path: Path) -> None:
    """The error does not mention an unknown encoding."""
    async with serve(Agent(name="talker", model=ScriptedModel(says("x" * 300_000)))) as env:
        invocation = await env.client.start("talker", "talk")
        assert len((await invocation.result()).text) == 300_000
        other = await AgentClient.connect(address=env.server.address, store=tmp_path)
        with pytest.raises(StoreFailed, match=rf"does not have the result of '{invocation.id}'\. .*--store"):
            await other.invocation(invocation.id).result()


def payload_of(size: int) -> Payload:
    """Return a JSON payload of a given size in bytes."""
    metadata = {"encoding": b"json/plain"}
    data = size
    while (payload := Payload(metadata=metadata, data=b'"' + b"x" * (data - 2) + b'"')).ByteSize() > size:
        data -= payload.ByteSize() - size
    assert payload.ByteSize() == size
    return payload


@pytest.mark.parametrize(("over", "offloaded"), [(-1, False), (0, True), (1, True)])
async def test_payloads_are_offloaded_from_the_configured_size(tmp_path: Path, over: int, offloaded: bool) -> None:
    """A payload of the configured size is offloaded; one that is a byte smaller stays."""
    converter = offloading(Blobs(tmp_path), over=10_000)
    [stored] = await converter.encode([RawValue(payload_of(10_000 + over))])
    assert is_reference(stored) is offloaded
    assert len(list_files(tmp_path)) == offloaded
    assert await retrieve_payloads([stored], converter) == [payload_of(10_000 + over)]


@pytest.mark.parametrize(("over", "starts"), [(0, True), (1, False)])
async def test_without_a_store_the_limit_is_the_servers(
    server: EmbeddedServer, tmp_path: Path, over: int, starts: bool
) -> None:
    """A larger payload is refused before it is sent, with its size, the cause and the remedy."""
    (tmp_path / "store").write_text("no folder")
    client = await AgentClient.connect(address=server.address, store=tmp_path / "store", task_queue="deserted")
    value = RawValue(payload_of(INLINE_LIMIT + over))
    starting = client.temporal.start_workflow(WORKFLOW, value, id=f"limit-{over}-{tmp_path}", task_queue="deserted")
    if starts:
        await (await starting).terminate()
        return
    with pytest.raises(StoreFailed, match=r"store failed: 2,050,001 bytes could not be stored, .* See --store"):
        await starting


async def test_a_client_without_a_store_names_its_limit(server: EmbeddedServer) -> None:
    """The error has the limits of the server and of gRPC messages."""
    client = AgentClient(await Client.connect(server.address), task_queue="deserted")
    await announce_agents(client.temporal, [Agent(name="reader")])
    for size in (2_200_000, 5_000_000):
        with pytest.raises(InvalidInput, match=r"The input has \d,\d{3},\d{3} bytes. .*store="):
            await client.start("reader", "x" * size)


async def test_an_unavailable_store_pauses_an_invocation_and_is_named(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers get the store and the remedy; workers continue when the store is back, and no tool runs again."""
    ran: list[int] = []

    def read() -> str:
        ran.append(1)
        return "x" * 500_000

    def ask() -> dict[str, str]:
        """Wait for an answer."""
        return {"status": "pending"}

    model = ScriptedModel(calls(("read", {}), ("ask", {})), says("Asked."), says("Done."))
    agent = Agent(name="reader", model=model, tools=[read, LongRunningFunctionTool(ask)])
    store, away = tmp_path / "store", tmp_path / "away"
    async with serve(agent, store=store, tasks_may_fail=True) as env:
        invocation = await start_and_wait(env.client.start("reader", "read"), "fc-2")
        await wait_until_quiet(invocation)
        store.rename(away)
        store.write_text("no folder")
        with pytest.raises(StoreFailed, match=rf"The store at file://{store} failed: .* see --store"):
            await invocation.log()
        get = Blobs.get

        async def back_once_missed(self: Blobs, digest: str) -> bytes:
            try:
                return await get(self, digest)
            except StoreFailed:
                store.unlink()
                away.rename(store)
                raise

        monkeypatch.setattr(Blobs, "get", back_once_missed)
        await invocation.approve("fc-2", signal=True)
        assert ((await invocation.result()).text, ran) == ("Done.", [1])
        [reason] = find_stuck_tasks(await invocation.history())
        assert f"The store at file://{store} failed: " in reason
        assert len((await invocation.log()).state.events) > 3


async def test_other_blobs_are_not_payloads(tmp_path: Path) -> None:
    """A reference to another blob of the store reads as broken JSON."""
    blobs = Blobs(tmp_path)
    digest = await blobs.put(b"\xff\xff\xff")
    claim = StorageDriverClaim({"digest": digest})
    [payload] = await BlobDriver(blobs).retrieve(StorageDriverRetrieveContext(), [claim])
    assert dict(payload.metadata) == UNREADABLE
