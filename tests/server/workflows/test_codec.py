"""With a payload codec, content is unreadable to the server and everything still works."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import temporalio.converter
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter, PayloadCodec

from tests.steps import wait_until
from waystation.agents import Agent
from waystation.apps.registry import Registry
from waystation.client.agent_client import AgentClient
from waystation.core.approval import ApprovalPolicy
from waystation.embedded import EmbeddedServer
from waystation.history import decode_events
from waystation.storage import Blobs
from waystation.storage.driver import offloading
from waystation.testing import ScriptedHuman, ScriptedModel, assert_projection_matches, calls, responses, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext
from waystation.worker import create_worker


class Veil(PayloadCodec):
    """A codec that hides payloads, in place of a real cipher."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return veiled payloads."""
        return [Payload(metadata={"encoding": b"binary/veiled"}, data=p.SerializeToString()[::-1]) for p in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode veiled payloads, and return others unchanged, because a codec that raises blocks a workflow."""
        return [
            Payload.FromString(p.data[::-1]) if p.metadata.get("encoding") == b"binary/veiled" else p for p in payloads
        ]


def ask(purpose: str) -> dict[str, str]:
    """Ask somebody."""
    return {"status": "pending"}


async def test_an_invocation_runs_and_reads_through_a_codec(server: EmbeddedServer) -> None:
    """Model, tool, view, stream, answer and projection work; the history has no readable content."""
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


MARKS = {
    "agent": "mark-agent",
    "tool": "mark_tool",
    "argument": "mark-argument",
    "message": "mark-message",
    "result": "mark-result",
    "reply": "mark-reply",
    "state": "mark-state",
    "comment": "mark-comment",
    "approver": "mark-approver",
    "error": "mark-error",
    "user": "mark-user",
    "session": "mark-session",
    "policy": "mark-policy",
}
READABLE = {"agent", "tool", "user", "session"}
"""Names that a codec leaves readable: they are in IDs, types and search attributes."""


def mark_tool(to: str, tool_context: ToolContext) -> dict[str, str]:
    """Return the text."""
    tool_context.state["note"] = MARKS["state"]
    if tool_context.state.get("temp:again"):
        raise ValueError(MARKS["error"])
    tool_context.state["temp:again"] = True
    return {"found": MARKS["result"]}


async def test_a_codec_leaves_names_readable(server: EmbeddedServer) -> None:
    """Names in IDs, types and search attributes stay readable, but no content of messages, calls, answers, state or
    errors.
    """
    converter = dataclasses.replace(temporalio.converter.default(), payload_codec=Veil())
    temporal = await Client.connect(server.address, data_converter=converter)
    call = calls(("mark_tool", {"to": MARKS["argument"]}))
    policy = ApprovalPolicy(approvers=(MARKS["policy"], MARKS["approver"]), verified=False)
    tool = FunctionTool(mark_tool, require_confirmation=True, approval=policy)
    agent = Agent(
        name=MARKS["agent"].replace("-", "_"), model=ScriptedModel(call, call, says(MARKS["reply"])), tools=[tool]
    )
    async with create_worker(temporal, Registry.of(agent), task_queue="marks", max_cached_workflows=0):
        client = AgentClient(temporal, task_queue="marks")
        invocation = await client.start(
            agent.name, MARKS["message"], user_id=MARKS["user"], session_id=MARKS["session"]
        )
        for number in (1, 2):
            await wait_until(invocation.pending, "the call to wait")
            await invocation.approve(f"fc-{number}", comment=MARKS["comment"], by=MARKS["approver"])
        assert (await invocation.result()).text == MARKS["reply"]
        described = await invocation.handle.describe()
        recorded = [event.SerializeToString() for event in (await invocation.history()).events]
        recorded.append(described.raw_description.SerializeToString())
        text = b"".join(recorded).replace(b"mark_agent", b"mark-agent")
        assert {kind for kind, mark in MARKS.items() if mark.encode() in text} == READABLE


async def test_a_large_payload_passes_through_the_codec_into_the_store(server: EmbeddedServer, tmp_path: Path) -> None:
    """Neither the history nor the store has readable content; there is no readable short form either."""
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
        stored = [await blobs.get(blob.digest) for blob in await blobs.list_stored()]
        assert (len(recorded) < 20_000, len(stored)) == (True, 1)
        assert [data for data in (recorded, *stored) if b"murmur" in data] == []
        await assert_projection_matches(invocation)


async def test_the_result_of_a_nexus_operation_is_decoded() -> None:
    """Readers receive the decoded result of a Nexus operation, although it is a single payload."""
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'{"cents": 5}')
    (veiled,) = await Veil().encode([plain])
    event = HistoryEvent(event_type=EventType.EVENT_TYPE_NEXUS_OPERATION_COMPLETED)
    event.nexus_operation_completed_event_attributes.result.CopyFrom(veiled)
    converter = dataclasses.replace(DataConverter.default, payload_codec=Veil())
    (decoded,) = await decode_events([event], converter)
    assert decoded.nexus_operation_completed_event_attributes.result == plain
