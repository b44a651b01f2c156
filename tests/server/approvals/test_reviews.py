"""An activity verifies an answer: its token and its response."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.fakes.openid import FakeOpenId
from tests.server.approvals.asking import asks_once
from tests.server.conftest import Serve
from tests.server.identity import test_deciding as deciding
from tests.steps import answer_and_finish, approve_and_finish, reject_and_finish, start_and_wait, wait_for_calls
from tests.unit.identity.conftest import Installation, installed
from waystation.agents import Agent
from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.approval import Answer, ApprovalPolicy, Verification, Verified
from waystation.core.errors import AlreadyAnswered, IdentityUnavailable, InvalidAnswer, NotAllowed
from waystation.core.log import AnswerVerified
from waystation.core.payload import JsonObject
from waystation.testing import AgentEnvironment
from waystation.tools import ToolContext
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

POLICY = ApprovalPolicy(approvers=("dana@example.com",))


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    return installed(tmp_path / "identity", openid)


class Ruling(BaseModel):
    granted: bool


def ask(purpose: str) -> None:
    """Ask somebody."""


def ask_if_confirmed(purpose: str, tool_context: ToolContext) -> None:
    """Ask somebody after a confirmation."""
    if tool_context.tool_confirmation is None:
        tool_context.request_confirmation(hint="Ask?")


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


PAYER = Agent(name="payer", model=asks_once("pay", {"amount": 5}), tools=[FunctionTool(pay, approval=POLICY)])
RULED = LongRunningFunctionTool(ask, response_schema=Ruling)
ASKER = Agent(name="asker", model=asks_once("ask", {"purpose": "x"}), tools=[RULED])


async def start_pending(env: AgentEnvironment, agent: str = "payer") -> Invocation:
    """Return an invocation with a pending call."""
    return await start_and_wait(env.client.start(agent, "go"), "fc-1")


async def reviews(invocation: Invocation) -> list[Verification]:
    return [e.body.review for e in (await invocation.log()).entries if isinstance(e.body, AnswerVerified)]


async def test_the_approver_is_verified_and_recorded(serve: Serve, there: Installation) -> None:
    """The subject and the roles are recorded; the history contains the token only encrypted."""
    async with serve(PAYER, identity=there.worker) as env:
        invocation = await start_pending(env)
        client = AgentClient(
            env.temporal,
            task_queue=env.client.task_queue,
            blobs=env.client.blobs,
            identity=there.folder / "clients.toml",
        )
        token = there.provider.token()
        await client.invocation(invocation.id).approve("fc-1", token=token, by="mallory")
        assert "'paid': 5" in (await invocation.result()).text
        (verification,) = await reviews(invocation)
        history = (await invocation.history()).to_json()
    assert verification.who is not None
    assert (verification.who.subject, verification.refused) == ("dana@example.com", None)
    assert token not in history


async def test_a_token_for_another_call_is_refused(serve: Serve, there: Installation) -> None:
    """A token is sealed for one answer to one call."""
    async with serve(PAYER, identity=there.worker) as env:
        first, second = await start_pending(env), await start_pending(env)
        answer = await deciding.sealed(there, first, there.provider.token())
        fields = {name: answer[name] for name in ("digest", "run", "token")}
        with pytest.raises(NotAllowed):
            await second.approve("fc-1", **fields)
        await first.approve("fc-1", **fields)
        await second.cancel()
        await first.result()


async def test_without_a_configuration_a_token_proves_nothing(serve: Serve, there: Installation) -> None:
    """The refusal has the remedy, and the call stays pending."""
    async with serve(PAYER) as env:
        invocation = await start_pending(env)
        answer = {"function_call_id": "fc-1", "action": "approve"}
        sealed = there.sealer.seal("token", namespace="default", approval_id=f"{invocation.id}/fc-1", answer=answer)
        with pytest.raises(NotAllowed, match="Start them with --identity FILE"):
            await invocation.approve("fc-1", token=sealed)
        await wait_for_calls(invocation, "fc-1")
        await invocation.cancel()


class Provider:
    """An identity provider that fails at first, temporarily or permanently."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.verified = 0

    async def verify(self, token: str, *, namespace: str, approval_id: str, answer: Answer) -> tuple[Verified, str]:
        if self.errors:
            raise self.errors.pop(0)
        self.verified += 1
        return Verified(subject="dana@example.com"), f"n-{self.verified}"


async def sealed(there: Installation, invocation: Invocation) -> JsonObject:
    """Return the fields of an answer with a token."""
    (call,) = await invocation.pending()
    return {"token": there.seal("token"), "digest": call.digest, "run": call.run}


async def test_an_unavailable_identity_provider_causes_a_retry(serve: Serve, there: Installation) -> None:
    """A failing provider neither loses nor refuses the answer."""
    async with serve(PAYER, identity=Provider(IdentityUnavailable("It is away."))) as env:
        invocation = await start_pending(env)
        await invocation.approve("fc-1", **await sealed(there, invocation))
        assert "'paid': 5" in (await invocation.result()).text


class SlowProvider(Provider):
    """An identity provider that does not answer until the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let = asyncio.Event(), asyncio.Event()

    async def verify(self, token: str, *, namespace: str, approval_id: str, answer: Answer) -> tuple[Verified, str]:
        self.asked.set()
        await self.let.wait()
        return await super().verify(token, namespace=namespace, approval_id=approval_id, answer=answer)


async def test_an_answer_that_loses_a_race_is_refused_with_the_winner(serve: Serve, there: Installation) -> None:
    """The sender does not get a failed update, which the server reports when an invocation ends first."""
    provider = SlowProvider()
    confirmed = FunctionTool(pay, require_confirmation=True)
    agent = Agent(name="payer", model=asks_once("pay", {"amount": 5}), tools=[confirmed])
    async with serve(agent, identity=provider) as env:
        invocation = await start_pending(env)
        slow = asyncio.create_task(invocation.approve("fc-1", **await sealed(there, invocation)))
        await provider.asked.wait()
        await reject_and_finish(invocation, "fc-1", by="erin")
        with pytest.raises(AlreadyAnswered, match="already answered by 'erin': reject"):
            await slow
        provider.let.set()


async def test_a_second_approval_does_not_answer_the_call_that_the_first_one_confirmed(
    serve: Serve, there: Installation
) -> None:
    """Both were submitted for the confirmation. The page of the call itself has another question."""
    provider = SlowProvider()
    tools = [LongRunningFunctionTool(ask_if_confirmed)]
    agent = Agent(name="asker", model=asks_once("ask_if_confirmed", {"purpose": "x"}), tools=tools)
    async with serve(agent, identity=provider) as env:
        invocation = await start_pending(env, "asker")
        fields = await sealed(there, invocation)
        first, second = (asyncio.create_task(invocation.approve("fc-1", **fields, by=name)) for name in "ab")
        async for log in invocation.follow():
            if len(log.state.approvals.submitted) == 2:
                break
        provider.let.set()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AlreadyAnswered", "dict"]
        (call,) = await wait_for_calls(invocation, "fc-1")
        assert call.kind == "long_running"
        with pytest.raises(AlreadyAnswered, match="not for the question"):
            await invocation.approve("fc-1", question=1)
        await approve_and_finish(invocation, "fc-1", **call.as_seen)


async def test_any_error_of_the_verification_refuses_the_answer(serve: Serve, there: Installation) -> None:
    """A forged token must not keep the activity busy."""
    async with serve(PAYER, identity=Provider(ZeroDivisionError("secret"))) as env:
        invocation = await start_pending(env)
        with pytest.raises(NotAllowed, match=r"could not be verified \(ZeroDivisionError\)"):
            await invocation.approve("fc-1", **await sealed(there, invocation))
        await approve_and_finish(invocation, "fc-1", **await sealed(there, invocation))


async def test_an_unauthorized_approver_learns_nothing_about_the_response(serve: Serve, there: Installation) -> None:
    """Authorization is checked before content, once the approver is verified."""
    policy = ApprovalPolicy(approvers=("eve@example.com",))
    agent = Agent(name="payer", model=asks_once("pay", {"amount": 5}), tools=[FunctionTool(pay, approval=policy)])
    async with serve(agent, identity=Provider()) as env:
        invocation = await start_pending(env)
        with pytest.raises(NotAllowed, match=r"'dana@example\.com' may not answer"):
            await invocation.answer("edit", "fc-1", args={"amuont": 5}, **await sealed(there, invocation))
        await invocation.cancel()


@pytest.mark.parametrize(
    ("action", "response", "problem"),
    [
        ("respond", {"granted": "maybe"}, "granted: 'maybe' is not of type 'boolean'"),
        ("respond", {}, "'granted' is a required property"),
        ("approve", {"granted": 5}, "granted: 5 is not of type 'boolean'"),
    ],
)
async def test_a_response_must_match_the_schema_of_the_tool(
    serve: Serve, action: Any, response: JsonObject, problem: str
) -> None:
    """A response is validated against the schema recorded with the call, which stays pending."""
    async with serve(ASKER) as env:
        invocation = await start_pending(env, "asker")
        with pytest.raises(InvalidAnswer, match=problem):
            await invocation.answer(action, "fc-1", response=response)
        await invocation.respond({"granted": True}, "fc-1")
        assert (await invocation.result()).text == "They said {'granted': True}."


@pytest.mark.parametrize(
    "answer", [{"action": "approve"}, {"action": "reject"}, {"action": "approve", "comment": "ok"}]
)
async def test_an_answer_without_a_response_needs_none(serve: Serve, answer: JsonObject) -> None:
    """The schema applies only to a response."""
    async with serve(ASKER) as env:
        invocation = await start_pending(env, "asker")
        await answer_and_finish(invocation, answer.pop("action"), "fc-1", **answer)
        with pytest.raises(AlreadyAnswered):
            await invocation.approve("fc-1")
