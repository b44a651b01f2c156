"""Clients and the command line send answers with a token."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.programs import command
from tests.server.approvals.asking import asker
from tests.server.conftest import Serve
from tests.unit.identity.conftest import Installation
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core import ids
from waystation.core.approval import CLIENT_IDENTITY_ENV, IDENTITY_ENV, Answer, is_encrypted, parse_answer
from waystation.core.errors import InvalidConfiguration, NotAllowed
from waystation.core.payload import JsonObject
from waystation.testing import AgentEnvironment


async def waiting(env: AgentEnvironment) -> Invocation:
    """Return an invocation with a pending call."""
    invocation = await env.client.start("asker", "go")
    async for _ in invocation.follow():
        if await invocation.pending():
            break
    return invocation


async def sent(invocation: Invocation) -> Answer:
    """Return the sent answer from the history."""
    for event in (await invocation.history()).events:
        accepted = event.workflow_execution_update_accepted_event_attributes.accepted_request
        for payloads in (
            event.workflow_execution_signaled_event_attributes.input.payloads,
            accepted.input.args.payloads,
        ):
            if payloads:
                return parse_answer(payloads[0].data)
    raise AssertionError("No answer was sent.")


def client_of(env: AgentEnvironment, identity: Any) -> AgentClient:
    """Return a client with an identity."""
    return AgentClient(env.temporal, task_queue=env.client.task_queue, blobs=env.client.blobs, identity=identity)


async def verified(there: Installation, invocation: Invocation) -> str:
    """Return the sender as a worker verifies it, from a history that reveals nothing of the token."""
    answer = await sent(invocation)
    assert answer.token is not None
    assert is_encrypted(answer.token)
    history = json.dumps(json.loads((await invocation.history()).to_json()))
    assert not any(secret in history for secret in there.provider.secrets)
    approval_id = ids.approval(invocation.id, "fc-1")
    who, _ = await there.worker.verify(answer.token, namespace="default", approval_id=approval_id, answer=answer)
    return who.subject


@pytest.mark.slow
async def test_a_token_is_sealed_before_it_is_sent(serve: Serve, there: Installation) -> None:
    """A token is sealed for one answer to one call; the history contains nothing that others could use."""
    async with serve(asker(), verify=False) as env:
        invocation = await waiting(env)
        client = client_of(env, there.folder / "clients.toml")
        fields: JsonObject = {"response": {"said": "yes"}, "by": "somebody", "comment": None}
        token = there.provider.token()
        await client.invocation(invocation.id).answer("respond", "fc-1", token=token, signal=True, **fields)
        assert await verified(there, invocation) == "dana@example.com"


@pytest.mark.slow
async def test_the_gateway_signs_exactly_this_answer(serve: Serve, there: Installation) -> None:
    """The client passes the answer to the gateway, and seals the signed token."""
    async with serve(asker(), verify=False) as env:
        invocation = await waiting(env)
        client = client_of(env, there.folder / "gateway.toml")
        token = there.gateway.signer("eve", ["finance"])
        await client.invocation(invocation.id).reject("fc-1", comment="no", token=token, signal=True)
        assert await verified(there, invocation) == "eve"


async def test_a_sealed_token_is_sent_unchanged(serve: Serve, there: Installation) -> None:
    """A client needs no key for a token that another program has sealed."""
    async with serve(asker(), verify=False) as env:
        invocation = await waiting(env)
        answer = {"function_call_id": "fc-1", "action": "reject"}
        sealed = there.sealer.seal(
            there.provider.token(),
            namespace="default",
            approval_id=ids.approval(invocation.id, "fc-1"),
            answer=answer,
        )
        await invocation.reject("fc-1", token=sealed, signal=True)
        assert await verified(there, invocation) == "dana@example.com"


async def test_a_token_is_never_sent_readable(
    serve: Serve, there: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent without the workers' key or with a token that is too long."""
    monkeypatch.delenv(CLIENT_IDENTITY_ENV, raising=False)
    async with serve(asker(), verify=False) as env:
        invocation = await waiting(env)
        with pytest.raises(InvalidConfiguration, match="WAYSTATION_CLIENT_IDENTITY: set it to a file"):
            await invocation.reject("fc-1", token=there.provider.token())
        with pytest.raises(NotAllowed, match="The limit is 16000"):
            await client_of(env, there.sealer).invocation(invocation.id).reject("fc-1", token="t" * 17_000)
        assert await invocation.pending()
        with pytest.raises(AssertionError, match="No answer"):
            await sent(invocation)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "variable"), [("file", CLIENT_IDENTITY_ENV), ("variable", IDENTITY_ENV)])
async def test_the_command_line_reads_a_token_from_a_file_or_a_variable(
    serve: Serve, there: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, variable: str
) -> None:
    """No option takes the token, because every user of the machine could see it. The variable of workers works, too."""
    monkeypatch.setenv(variable, str(there.folder / "clients.toml"))
    options: tuple[str, ...] = ()
    if source == "file":
        (tmp_path / "token").write_text(there.provider.token() + "\n")
        options = ("--token-file", str(tmp_path / "token"))
    else:
        monkeypatch.setenv("WAYSTATION_TOKEN", there.provider.token())
    async with serve(asker(), identity=there.worker) as env:
        invocation = await waiting(env)
        where = ("--address", env.server.address, "--task-queue", env.client.task_queue)
        ran = await command(*where, "reject", invocation.id, "fc-1", "--comment", "no", *options)
        assert (ran.code, ran.err) == (0, "")
        assert await verified(there, invocation) == "dana@example.com"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), ("", "does not contain a token"), ("é", "does not contain a token")],
)
async def test_a_file_without_a_token_is_a_usage_error(
    serve: Serve, there: Installation, tmp_path: Path, content: str | None, problem: str
) -> None:
    """Without the token, the answer would be an unverified claim."""
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    async with serve(asker(), verify=False) as env:
        invocation = await waiting(env)
        where = ("--address", env.server.address, "--task-queue", env.client.task_queue)
        ran = await command(*where, "approve", invocation.id, "fc-1", "--token-file", str(file))
        assert ran.code == 2
        assert problem in ran.err
        assert await invocation.pending()


async def test_a_command_creates_keys_without_showing_or_overwriting_any(tmp_path: Path) -> None:
    """`waystation identity init` creates keys, and neither shows nor overwrites one."""
    ran = await command("identity", "init", str(tmp_path / "keys"))
    assert ran.code == 0
    assert "workers.toml" in ran.out
    for file in ("envelope-private.json", "gateway-signing.json", "links.key"):
        text = (tmp_path / "keys" / file).read_text().strip()
        secret = json.loads(text)["d"] if text.startswith("{") else text
        assert secret not in ran.out + ran.err
    second_run = await command("identity", "init", str(tmp_path / "keys"))
    assert second_run.code == 2
    assert "already exists" in second_run.err
