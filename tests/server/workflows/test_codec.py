"""With a payload codec, content is unreadable to the server and everything still works."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import temporalio.converter
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import PayloadCodec

from tests.server.workflows.outside import files_in
from waystation.agents import Agent
from waystation.agents.registry import Registry
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.storage import Blobs
from waystation.storage.driver import offloading
from waystation.testing import ScriptedHuman, ScriptedModel, assert_projection_matches, calls, responses, says
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.worker import create_worker


class Veil(PayloadCodec):
    """Hides payloads from a glance; stands for a real cipher."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return veiled payloads."""
        return [Payload(metadata={"encoding": b"binary/veiled"}, data=p.SerializeToString()[::-1]) for p in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return what was veiled; anything else as it stands, because a codec that raises sticks a workflow."""
        return [
            Payload.FromString(p.data[::-1]) if p.metadata.get("encoding") == b"binary/veiled" else p for p in payloads
        ]


def ask(purpose: str) -> dict[str, str]:
    """Ask somebody."""
    return {"status": "pending"}


async def test_an_invocation_runs_and_reads_through_a_codec(server: EmbeddedServer) -> None:
    """Model, tool, view, stream, answer and projection; no word of it is in the history's bytes."""
    converter = dataclasses.replace(temporalio.converter.default(), payload_codec=Veil())
    temporal = await Client.connect(server.address, data_converter=converter)
    model = ScriptedModel(calls(("ask", {"purpose": "whisper"})), says("murmur"), says("hush"))
    agent = Agent(name="quiet", model=model, tools=[LongRunningFunctionTool(ask)])
    async with create_worker(temporal, Registry.of(agent), task_queue="codec", max_cached_workflows=0):
        client = AgentClient(temporal, task_queue="codec")
        invocation = await client.start("quiet", "whisper")
        await ScriptedHuman("approve").attend(invocation)
        assert (await invocation.result()).text == "hush"
        await assert_projection_matches(invocation)
        recorded = b"".join(event.SerializeToString() for event in (await invocation.history()).events)
        assert [word for word in (b"murmur", b"hush", b"approve") if word in recorded] == []


async def test_a_large_payload_goes_through_the_codec_into_the_store(server: EmbeddedServer, tmp_path: Path) -> None:
    """Neither the history nor the store has a word of it; nor is there a short form, which would."""
    converter = dataclasses.replace(temporalio.converter.default(), payload_codec=Veil())
    blobs = Blobs(tmp_path)
    temporal = await Client.connect(server.address, data_converter=offloading(blobs, converter=converter))

    def read() -> str:
        return "murmur " * 50_000

    model = ScriptedModel(calls(("read", {})), says("hush"))
    agent = Agent(name="quiet", model=model, tools=[read])
    worker = create_worker(temporal, Registry.of(agent), blobs=blobs, task_queue="veiled", max_cached_workflows=0)
    async with worker:
        invocation = await AgentClient(temporal, task_queue="veiled", blobs=blobs).start("quiet", "whisper")
        assert (await invocation.result()).text == "hush"
        assert responses(model.requests[1]) == [("read", {"result": "murmur " * 50_000})]
        recorded = b"".join(event.SerializeToString() for event in (await invocation.history()).events)
        stored = [file.read_bytes() for file in files_in(tmp_path)]
        assert (len(recorded) < 20_000, len(stored)) == (True, 1)
        assert [data for data in (recorded, *stored) if b"murmur" in data] == []
        await assert_projection_matches(invocation)
