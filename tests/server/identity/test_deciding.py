"""Workers verify the identity of each answer on a real server."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from tests.fakes.openid import FakeOpenId
from tests.server.approvals.asking import asks_once
from tests.server.conftest import Serve
from tests.steps import start_and_wait, wait_until
from tests.unit.identity.conftest import Installation, installed
from waystation.agents import Agent
from waystation.client.agent_client import AgentClient, Invocation
from waystation.client.invocation_handle import translate_answer_error
from waystation.core import ids
from waystation.core.approval import ApprovalPolicy, Verified
from waystation.core.contract import ANSWER_SIGNAL, ANSWER_UPDATE
from waystation.core.errors import AlreadyAnswered, NotAllowed, WaystationError
from waystation.core.log import AnswerIgnored
from waystation.core.payload import JsonObject
from waystation.testing import AgentEnvironment
from waystation.tools import FunctionTool

FINANCE = ApprovalPolicy(approvers=("dana@example.com", "role:finance"))
NOBODY = "eve@example.com"


def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def payer(policy: ApprovalPolicy = FINANCE) -> Agent:
    """Return an agent that pays after the approvals that a policy requires."""
    return Agent(name="payer", model=asks_once("pay", {"amount": 5}), tools=[FunctionTool(pay, approval=policy)])


async def start_pending(env: AgentEnvironment, agent: str = "payer") -> Invocation:
    """Return an invocation with a pending call."""
    invocation = await start_and_wait(env.client.start(agent, "go", user_id="user-1"))
    return invocation


def client_of(env: AgentEnvironment, there: Installation) -> AgentClient:
    """Return a client that seals tokens."""
    file = there.folder / "clients.toml"
    return AgentClient(env.temporal, task_queue=env.client.task_queue, blobs=env.client.blobs, identity=file)


async def sealed(there: Installation, invocation: Invocation, token: str, **answer: Any) -> JsonObject:
    """Return an answer to the invocation's current call, with its token."""
    state = (await invocation.log()).state
    displayed = {"digest": state.calls["fc-1"].digest, "run": state.run}
    content = {"function_call_id": "fc-1", "action": "approve", **displayed} | answer
    call = ids.approval(invocation.id, "fc-1")
    return content | {"token": there.sealer.seal(token, namespace="default", approval_id=call, answer=content)}


async def no_secret(there: Installation, *invocations: Invocation) -> None:
    """Verify that no history contains anything that others could use."""
    for invocation in invocations:
        text = (await invocation.history()).to_json()
        data = text + "".join(base64.b64decode(part).decode(errors="replace") for part in _payloads(json.loads(text)))
        assert not any(secret in data for secret in there.provider.secrets)


def _payloads(value: Any) -> list[str]:
    match value:
        case {"data": str(data), "metadata": _}:
            return [data]
        case dict():
            return [found for item in value.values() for found in _payloads(item)]
        case list():
            return [found for item in value for found in _payloads(item)]
        case _:
            return []


async def test_an_approver_of_the_policy_decides_with_a_token(serve: Serve, there: Installation) -> None:
    """The policy names a subject or a role; the identity is recorded, and the token is not."""
    async with serve(payer(), identity=there.worker) as env:
        client = client_of(env, there)
        by_name, by_role = await start_pending(env), await start_pending(env)
        token = there.provider.token("dana@example.com", roles=[])
        await client.invocation(by_name.id).approve(token=token)
        signer = there.gateway.signer("frank", ["finance"])
        await client.invocation(by_role.id).approve(token=signer, by="somebody else")
        for invocation in (by_name, by_role):
            assert (await invocation.result()).text == "They said {'result': 'paid'}."
        who = [(await invocation.log()).state.calls["fc-1"].decided_by for invocation in (by_name, by_role)]
        assert who[0] == Verified(subject="dana@example.com", issuer=there.provider.url)
        assert who[1] == Verified(subject="frank", roles=("finance",), issuer="https://approvals.example.com")
        await no_secret(there, by_name, by_role)


@pytest.mark.slow
async def test_a_token_of_another_person_decides_nothing(serve: Serve, there: Installation) -> None:
    """A token does not count if it proves an identity that the policy does not name."""
    async with serve(payer(), identity=there.worker) as env:
        invocation = await start_pending(env)
        token = there.provider.token(NOBODY, roles=["interns"])
        with pytest.raises(NotAllowed):
            await client_of(env, there).invocation(invocation.id).approve(token=token)
        assert await invocation.pending()
        await client_of(env, there).invocation(invocation.id).reject(token=there.provider.token())
        await invocation.result()


@pytest.mark.slow
async def test_a_claimed_identity_decides_nothing(serve: Serve, there: Installation) -> None:
    """Neither the client's identity, nor a header, nor a field of the answer is proof."""
    async with serve(payer(), identity=there.worker) as env:
        invocation = await start_pending(env)
        posing = await Client.connect(
            env.server.address,
            identity="dana@example.com",
            rpc_metadata={"authorization": f"Bearer {there.provider.token()}", "x-user": "dana@example.com"},
            data_converter=env.temporal.data_converter,
        )
        forger = AgentClient(posing, task_queue=env.client.task_queue).invocation(invocation.id)
        who = {"subject": "dana@example.com", "roles": ["finance"]}
        bodies: list[JsonObject] = [
            {"by": "dana@example.com"},
            {"by": "role:finance"},
            {"who": who, "verified": who, "decided_by": who},
            {"roles": ["finance"], "subject": "dana@example.com", "issuer": there.provider.url},
            {"review": {"who": who, "nonce": "n"}, "nonce": "n"},
        ]
        for body in bodies:
            with pytest.raises(NotAllowed):
                await forger.approve("fc-1", **body)
            await forger.approve("fc-1", signal=True, **body)
        call = (await invocation.pending())[0]
        assert call.approved_by == ()
        await client_of(env, there).invocation(invocation.id).reject(token=there.provider.token())
        assert (await invocation.result()).status == "completed"
        log = await invocation.log()
        assert sum(isinstance(entry.body, AnswerIgnored) for entry in log.entries) == len(bodies)


async def test_a_used_token_is_not_valid_again(serve: Serve, there: Installation) -> None:
    """A used token counts neither for the next call, nor for another invocation, nor twice for a quorum."""
    two = ApprovalPolicy(approvers=("role:finance",), quorum=2)
    async with serve(payer(two), identity=there.worker) as env:
        first, second = await start_pending(env), await start_pending(env)
        answer = await sealed(there, first, there.provider.token("dana@example.com"))
        fields = {name: value for name, value in answer.items() if name not in ("function_call_id", "action")}
        await first.approve("fc-1", **fields)
        for invocation, change in ((first, {}), (second, {}), (first, {"comment": "another"}), (first, {"by": "gus"})):
            with pytest.raises((NotAllowed, AlreadyAnswered)):
                await invocation.approve("fc-1", **{**fields, **change})
            await invocation.approve("fc-1", signal=True, **{**fields, **change})
        assert (await first.pending())[0].approved_by == ("dana@example.com",)
        assert (await second.pending())[0].approved_by == ()
        for invocation in (first, second):
            await client_of(env, there).invocation(invocation.id).reject(token=there.provider.token("gus"))
            await invocation.result()
        await no_secret(there, first, second)


async def test_a_person_does_not_count_twice_with_a_letter_of_another_script(serve: Serve, there: Installation) -> None:
    """A name with a similar Cyrillic letter is refused; the refusal shows the letter and names the scripts."""
    two = ApprovalPolicy(approvers=("role:finance",), quorum=2)
    async with serve(payer(two), identity=there.worker) as env:
        invocation = await start_pending(env)
        client = client_of(env, there).invocation(invocation.id)
        with pytest.raises(NotAllowed, match=r"'d\\u0430na@example.com' may not approve .* Cyrillic and Latin"):
            await client.approve(token=there.provider.token("d\u0430na@example.com"))
        await client.approve(token=there.provider.token("dana@example.com"))
        assert (await invocation.pending())[0].approved_by == ("dana@example.com",)
        await client.approve(token=there.provider.token("\u7530\u4e2d\u308a\u3048@example.com"))  # Japanese
        await invocation.result()


async def test_a_plaintext_token_is_refused_with_a_request_to_revoke_it(serve: Serve, there: Installation) -> None:
    """An update leaves no trace. A signal unavoidably leaves one, and its record contains the remedy."""
    async with serve(payer(), identity=there.worker) as env:
        invocation = await start_pending(env)
        plain = {"function_call_id": "fc-1", "action": "approve", "token": there.provider.token("dana@example.com")}
        before = len((await invocation.history()).events)
        with pytest.raises(WaystationError, match="not encrypted"):
            await _sent_as_it_is(invocation, plain)
        assert plain["token"] not in (await invocation.history()).to_json()
        assert len((await invocation.history()).events) <= before + 3
        await invocation.handle.signal(ANSWER_SIGNAL, plain)

        async def ignored() -> AnswerIgnored | None:
            entries = [
                entry.body for entry in (await invocation.log()).entries if isinstance(entry.body, AnswerIgnored)
            ]
            return entries[0] if entries else None

        ignored_entry = await wait_until(ignored, "that the signal was ignored")
        assert ignored_entry is not None
        assert "Revoke it." in ignored_entry.message
        assert (await invocation.pending())[0].approved_by == ()
        await client_of(env, there).invocation(invocation.id).reject(token=there.provider.token())
        await invocation.result()


async def _sent_as_it_is(invocation: Invocation, answer: JsonObject) -> None:
    """Send an answer with a client that seals nothing."""
    try:
        await invocation.handle.execute_update(ANSWER_UPDATE, answer)
    except WorkflowUpdateFailedError as error:
        raise translate_answer_error(error) or error from None


@pytest.mark.slow
async def test_an_answer_waits_for_an_unavailable_provider(
    serve: Serve, tmp_path: Path, own_openid: FakeOpenId
) -> None:
    """An answer is not refused while the provider is unavailable, and counts afterward."""
    there = installed(tmp_path / "identity", own_openid)
    own_openid.keys_down = True
    async with serve(payer(), identity=there.worker) as env:
        invocation = await start_pending(env)
        client = client_of(env, there)
        await client.invocation(invocation.id).approve("fc-1", token=own_openid.token(), signal=True)

        async def tried() -> bool:
            return own_openid.key_reads > 0

        await wait_until(tried, "that the provider was asked")
        own_openid.keys_down = False
        assert (await invocation.result()).text == "They said {'result': 'paid'}."
