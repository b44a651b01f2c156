"""Requests to a remote agent over real HTTP, and replies that are not to be trusted."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from a2a.types import Part
from google.protobuf import json_format, struct_pb2
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response, StreamingResponse

from tests.fakes.a2a_agent import A2aAgent, Reply
from waystation.agents.remote_a2a_agent import RemoteA2aAgent
from waystation.artifacts import InMemoryArtifactService
from waystation.tools import BaseTool, ToolContext
from waystation.tools.a2a_tool import (
    MAX_FILE_BYTES,
    MAX_REPLY_BYTES,
    RemoteAgentFailed,
    find_context_id,
)
from waystation.tools.outcome import OutcomeUnknown
from waystation.tools.services import Services


def tool_of(remote: A2aAgent, name: str, card: Any = None, **settings: Any) -> BaseTool:
    """Return one of the tools of a remote agent."""
    agent = RemoteA2aAgent("billing", card or remote.url, poll_interval=_SOON, **settings)
    tool: BaseTool = next(tool for tool in agent.tools if tool.name == name)
    return tool


def context(**about: Any) -> ToolContext:
    """Return the context of a call."""
    return ToolContext(idempotency_key="refund-8/fc-1", agent_name="billing", **about)


async def send(remote: A2aAgent, text: str, tool_context: ToolContext | None = None, **settings: Any) -> Any:
    """Send a message, and return the result."""
    tool = tool_of(remote, "send_message", **settings)
    return await tool.run_async(args={"message": text}, tool_context=tool_context or context())


async def wait(remote: A2aAgent, task_id: str, tool_context: ToolContext | None = None, **settings: Any) -> Any:
    """Wait for a task, and return the result."""
    tool = tool_of(remote, "wait_for_task", **settings)
    return await tool.run_async(args={"task_id": task_id}, tool_context=tool_context or context())


async def test_the_idempotency_key_is_the_message_id(remote: A2aAgent) -> None:
    """All attempts send the same ID, and the context of the session."""
    tool_context = context()
    assert await send(remote, "say hello", tool_context) == {
        "state": "completed",
        "text": "hello",
        "data": [],
        "files": [],
    }
    [message] = remote.messages
    assert message.message_id == "refund-8/fc-1"
    assert message.context_id == find_context_id(tool_context, "billing")


@pytest.mark.parametrize(("binding", "version"), [("JSONRPC", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "1.0")])
async def test_a_task_is_sent_and_awaited_over_each_binding(binding: str, version: str) -> None:
    """The card says which one the remote agent speaks."""
    with A2aAgent(binding=binding, version=version) as remote:
        remote.gate.set()
        task = await send(remote, "work on it")
        assert (await wait(remote, task["task_id"]))["text"] == "Done: work on it"


async def test_text_data_and_files_of_a_task(remote: A2aAgent) -> None:
    """Files become artifacts under names that cannot reach other sessions; URLs are not fetched."""
    value = json_format.ParseDict({"total": 7}, struct_pb2.Value())
    remote.parts = [
        Part(text="Two lines."),
        Part(data=value),
        Part(raw=b"%PDF", filename="user:../in voice.pdf", media_type="application/pdf"),
        Part(raw=b"x" * (MAX_FILE_BYTES + 1), filename="large"),
        Part(url="https://elsewhere.example/a.pdf"),
    ]
    artifacts = InMemoryArtifactService()
    tool_context = context(services=Services(artifacts=artifacts))
    result = await wait(remote, (await send(remote, "send all"))["task_id"], tool_context)
    assert (result["state"], result["text"], result["data"]) == ("completed", "Two lines.", [{"total": 7}])
    assert result["files"] == [
        "billing-user_.._in_voice.pdf (artifact, version 0)",
        "billing-large (not kept, because it has 8,000,001 bytes)",
        "https://elsewhere.example/a.pdf (not fetched)",
    ]
    assert tool_context.actions.artifact_delta == {"billing-user_.._in_voice.pdf": 0}


_ELSEWHERE = b'{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"","status":{"state":"TASK_STATE_WORKING"}}}}'
CARD = "/.well-known/agent-card.json"
_SOON = timedelta(seconds=0.01)
BAD: dict[str, Reply] = {
    "no JSON": lambda _: Response("<html>busy</html>"),
    "no object": lambda _: Response("[]"),
    "no result": lambda _: Response("{}"),
    "deep": lambda _: Response("[" * 50_000),
    "no task": lambda _: Response(_ELSEWHERE),
    "redirect": lambda _: RedirectResponse("https://elsewhere.example/a2a", 307),
    "large": lambda _: Response(b" " * (MAX_REPLY_BYTES + 1)),
    "many values": lambda _: Response(b"[" + b"1," * 200_000 + b"1]"),
    "compressed": lambda content: Response(gzip.compress(content), headers={"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_reply_that_is_not_acceptable_leaves_the_outcome_unknown(remote: A2aAgent, kind: str) -> None:
    """The message has arrived, so it is not sent again."""
    remote.replies["SendMessage"] = BAD[kind]
    with pytest.raises(OutcomeUnknown):
        await send(remote, "work on it")
    assert len(remote.messages) == 1


@pytest.mark.parametrize("kind", BAD)
async def test_a_wait_ends_after_several_replies_that_are_not_acceptable(remote: A2aAgent, kind: str) -> None:
    """One such reply may come from a proxy; after five, the model receives an error."""
    task = await send(remote, "work on it")
    remote.replies["GetTask"] = BAD[kind]
    result = await wait(remote, task["task_id"])
    assert result["state"] == "lost"
    assert remote.methods.count("GetTask") == 5


async def test_a_reply_about_another_task_is_refused(remote: A2aAgent) -> None:
    """A result of another task is not that of this call."""
    task = await send(remote, "work on it")
    other = task["task_id"].encode()
    remote.replies["GetTask"] = lambda content: Response(content.replace(other, b"task-of-somebody-else"))
    result = await wait(remote, task["task_id"])
    assert "another task" in result["error"]


async def test_an_outage_does_not_end_a_wait(remote: A2aAgent) -> None:
    """The remote agent may be away for longer than it may send nonsense."""
    task = await send(remote, "work on it")

    def fail(_: bytes) -> Response:
        if remote.methods.count("GetTask") > 8:
            remote.replies.clear()
            remote.gate.set()
        return Response(status_code=503)

    remote.replies["GetTask"] = fail
    assert (await wait(remote, task["task_id"]))["text"] == "Done: work on it"


async def test_an_outage_of_the_card_does_not_end_a_wait(remote: A2aAgent) -> None:
    """A worker that takes over reads the card again."""
    task = await send(remote, "work on it")

    def fail(_: bytes) -> Response:
        if remote.methods.count(CARD) > 8:
            remote.replies.clear()
            remote.gate.set()
        return Response(status_code=503)

    remote.replies[CARD] = fail
    assert (await wait(remote, task["task_id"]))["text"] == "Done: work on it"


@pytest.mark.parametrize("method", ["SendMessage", CARD])
async def test_a_reply_that_trickles_is_not_awaited(remote: A2aAgent, method: str) -> None:
    """The time limit is for the whole message. Without a card, nothing was sent, so nothing is unknown."""

    async def trickle() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.1)

    remote.replies[method] = lambda _: StreamingResponse(trickle())
    with pytest.raises(RemoteAgentFailed if method == CARD else OutcomeUnknown, match="did not reply"):
        await send(remote, "work on it", timeout=0.5)


async def test_a_task_that_takes_too_long_is_canceled(remote: A2aAgent) -> None:
    """The model learns that the time is over."""
    task = await send(remote, "work on it")
    tool = tool_of(remote, "wait_for_task")
    result = await tool.run_async(args={"task_id": task["task_id"], "until": time.time()}, tool_context=context())
    assert "took too long" in result["error"]
    assert remote.canceled == [task["task_id"]]


async def test_a_refusal_of_the_remote_agent_is_an_ordinary_error(remote: A2aAgent) -> None:
    """It has done nothing, so nothing is unknown."""
    tool = tool_of(remote, "send_message")
    with pytest.raises(RemoteAgentFailed, match="refused the request"):
        await tool.run_async(args={"message": "work", "task_id": "unknown"}, tool_context=context())


async def test_a_card_that_points_to_another_host_is_refused() -> None:
    """Nothing is sent there. The author can trust the card by saving it."""
    with A2aAgent() as other, A2aAgent() as remote:
        remote.card_url = f"{other.url}/a2a"
        remote.replies[CARD] = lambda _: Response(json_format.MessageToJson(remote.card()))
        with pytest.raises(RemoteAgentFailed, match="another host"):
            await send(remote, "work on it")
        assert other.methods == []


async def test_a_card_from_a_file(remote: A2aAgent, tmp_path: Path) -> None:
    """Its description is the author's own, so other agents' models read it."""
    path = tmp_path / "card.json"
    path.write_text(json_format.MessageToJson(remote.card()))
    assert RemoteA2aAgent("billing", str(path)).description == "Works elsewhere."
    assert (await send(remote, "say hello", card=str(path)))["text"] == "hello"


@pytest.mark.parametrize(
    "card", ["http://billing.example/", "http://localhost@billing.example/", "ftp://billing.example", "no-such-file", 7]
)
def test_a_card_that_cannot_be_used_is_refused_at_once(card: Any) -> None:
    """Credentials and messages never leave this machine unencrypted."""
    with pytest.raises(ValueError, match=r"is not allowed|cannot be read"):
        RemoteA2aAgent("billing", card)


@pytest.mark.parametrize("place", ["query", "cookie"])
def test_a_credential_that_would_not_be_sent_is_refused(place: str) -> None:
    """The remote agent would refuse each message, without a hint at the reason."""
    with pytest.raises(ValueError, match=f"would be sent in a {place}"):
        RemoteA2aAgent("billing", "http://localhost:1", auth_scheme={"type": "apiKey", "in": place, "name": "key"})


def test_settings_of_adk_that_have_no_meaning_here_are_refused() -> None:
    """An HTTP client cannot be part of a recorded definition."""
    with pytest.raises(ValidationError, match="httpx_client"):
        RemoteA2aAgent("billing", "http://localhost:1", httpx_client=object())


def test_each_person_and_tenant_has_a_conversation_of_its_own() -> None:
    """Equal names of sessions do not make a conversation common."""
    from waystation.sessions import Session

    ids = {
        find_context_id(ToolContext(tenant=tenant, session=Session(id="s", app_name=app, user_id=user)), agent)
        for tenant, app, user, agent in [
            (None, "a", "u", "x"),
            ("t", "a", "u", "x"),
            (None, "b", "u", "x"),
            (None, "a", "v", "x"),
            (None, "a", "u", "y"),
        ]
    }
    assert len(ids) == 5


async def test_a_credential_is_sent_and_not_recorded(remote: A2aAgent) -> None:
    """It goes to the card and to the agent."""
    from waystation.auth import AuthCredential, AuthCredentialTypes, HttpAuth, HttpCredentials

    credential = AuthCredential(
        auth_type=AuthCredentialTypes.HTTP, http=HttpAuth(scheme="bearer", credentials=HttpCredentials(token="s3cret"))
    )
    scheme = {"type": "http", "scheme": "bearer"}
    tool_context = context()
    result = await send(remote, "say hello", tool_context, auth_scheme=scheme, auth_credential=credential)
    assert [headers.get("authorization") for headers in remote.headers] == ["Bearer s3cret"] * 2
    assert "s3cret" in set(tool_context.secrets_given())
    assert "s3cret" not in json.dumps(result)
