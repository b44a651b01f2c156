"""Starts with a token: their verified requester may not approve."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.agents import Till
from tests.server.attacks.attackers import started
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of, no_secret
from tests.steps import (
    approve_and_finish,
    catch_failure,
    catch_refusal,
    force_continue_as_new,
    start_and_wait,
    wait_for_calls,
    wait_for_joined_messages,
    wait_until,
)
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.cli.program import app
from waystation.client import Invocation
from waystation.client.invocation_handle import start_invocation
from waystation.core.approval import CLIENT_IDENTITY_ENV, ApprovalPolicy
from waystation.core.errors import InvalidConfiguration
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, calls, latest_turn, says
from waystation.tools import AgentTool, FunctionTool

ANN, BOB, CLEO = "ann@example.com", "bob@example.com", "cleo@example.com"
OTHERS = ApprovalPolicy(not_requester=True)


class Held:
    """A model that pays for the message `pay`, and is held at any other message."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def reply(self, request: LlmRequest) -> LlmResponse:
        """Pay for the message `pay`."""
        said, told = latest_turn(request)
        if said == "pay" and not told:
            return calls(("pay", {"amount": 5}))
        self.asked.set()
        await self.go.wait()
        return says("Done.")

    def agent(self, till: Till) -> Agent:
        """Return an agent with this model."""
        return Agent(name="payer", model=FunctionModel(self.reply), tools=[FunctionTool(till.pay, approval=OTHERS)])


def payer(till: Till, policy: ApprovalPolicy = OTHERS) -> Agent:
    """Return an agent that pays once for each message."""

    def act(request: LlmRequest) -> LlmResponse:
        _, told = latest_turn(request)
        return says("Paid.") if told else calls(("pay", {"amount": 5}))

    return Agent(name="payer", model=FunctionModel(act), tools=[FunctionTool(till.pay, approval=policy)])


async def refused(env: AgentEnvironment, there: Installation, invocation: Invocation, *subjects: str) -> None:
    """Verify that these people may not approve the first call of an invocation."""
    await wait_for_calls(invocation, "fc-1")
    for subject in subjects:
        token = there.provider.token(subject)
        answer = client_of(env, there).invocation(invocation.id).approve("fc-1", token=token)
        assert await catch_refusal(answer) == "NotAllowed"


async def approved(env: AgentEnvironment, there: Installation, invocation: Invocation, subject: str) -> None:
    """Approve the first call of an invocation."""
    await wait_for_calls(invocation, "fc-1")
    await client_of(env, there).invocation(invocation.id).approve("fc-1", token=there.provider.token(subject))


@pytest.mark.slow
async def test_a_call_of_an_unverified_requester_can_be_rejected_or_waived(serve: Serve, there: Installation) -> None:
    """Nobody can approve the call, and the refusal names the alternatives."""
    till = Till()
    async with serve(payer(till), identity=there.worker) as env:
        client = client_of(env, there)
        for action, roles in (("reject", []), ("waive", ["waystation-operator"])):
            asked = client.invocation((await env.client.start("payer", "go", user_id=ANN)).id)
            await wait_for_calls(asked, "fc-1")
            with pytest.raises(Exception, match=r"--token-file FILE.*operator waive"):
                await asked.approve("fc-1", token=there.provider.token(BOB))
            await asked.answer(action, "fc-1", token=there.provider.token(BOB, roles=roles))  # type: ignore[arg-type]
            await asked.result()
    assert till.paid == [5]


async def test_the_token_of_a_start_is_not_recorded_and_costs_no_event(serve: Serve, there: Installation) -> None:
    """The model call, which runs anyway, verifies the token."""
    till = Till()
    async with serve(payer(till, ApprovalPolicy(verified=False)), identity=there.worker) as env:
        client = client_of(env, there)
        asked = [await client.start("payer", "go", token=token) for token in (there.provider.token(ANN), None)]
        lengths = set[int]()
        for invocation in asked:
            await wait_for_calls(invocation, "fc-1")
            lengths.add((await invocation.handle.describe()).history_length)
            await approve_and_finish(invocation, "fc-1")
        assert len(lengths) == 1
        await no_secret(there, *asked)


async def test_an_invalid_token_fails_the_invocation(serve: Serve, there: Installation) -> None:
    """The error names the problem, and nothing has run."""
    till = Till()
    async with serve(payer(till), identity=there.worker) as env:
        client = client_of(env, there)
        expired = await client.start("payer", "go", token=there.provider.token(ANN, exp=1))
        error = await catch_failure(expired)
    assert error.type == "NotAllowed"
    assert "expired" in error.message


async def test_a_worker_without_verification_ignores_a_token(serve: Serve, there: Installation) -> None:
    """The requester counts as unverified, although the client sends a token with the start."""
    async with serve(payer(Till())) as env:
        invocation = await client_of(env, there).start("payer", "go", token=there.provider.token(ANN))
        (call,) = await wait_for_calls(invocation, "fc-1")
        assert call.verified_requesters == ()
        await invocation.handle.terminate()


async def test_a_client_without_a_key_sends_no_token(serve: Serve) -> None:
    """The error names the missing variable, and nothing starts."""
    async with serve(payer(Till())) as env:
        with pytest.raises(InvalidConfiguration, match="WAYSTATION_CLIENT_IDENTITY"):
            await env.client.start("payer", "go", token="a.b.c")


@pytest.mark.slow
async def test_the_requester_is_known_in_later_runs(serve: Serve, there: Installation) -> None:
    """The invocation continues as new before the answer."""
    till = Till()
    async with serve(payer(till), identity=there.worker) as env:
        client, params = client_of(env, there), {"agent": "payer", "message": "go", "cut_after": 20}
        id = f"cut-{env.client.task_queue}"
        await start_invocation(client, id, params, token=there.provider.token(ANN))
        asked = client.invocation(id)
        await wait_for_calls(asked, "fc-1")
        await force_continue_as_new(asked)
        await refused(env, there, asked, ANN)
        await approved(env, there, asked, BOB)
        await asked.result()
    assert till.paid == [5]


@pytest.mark.slow
async def test_a_called_agent_has_the_requester_of_its_caller(serve: Serve, there: Installation) -> None:
    """Bob may approve a call two levels below the invocation that Ann started, and she may not."""
    till, agent = Till(), None
    agent = payer(till)
    for name in ("middle", "boss"):

        def act(request: LlmRequest, below: str = agent.name) -> LlmResponse:
            return says("Done.") if latest_turn(request)[1] else calls((below, {"request": "go"}))

        agent = Agent(name=name, model=FunctionModel(act), tools=[AgentTool(agent)])
    async with serve(agent, identity=there.worker) as env:
        asked = await client_of(env, there).start("boss", "go", token=there.provider.token(ANN))
        called = env.client.invocation(f"{asked.id}/fc-1/fc-1")
        await wait_until(lambda: started(called), "that the agent was called")
        await refused(env, there, called, ANN)
        await approved(env, there, called, BOB)
        await asked.result()
    assert till.paid == [5]


@pytest.mark.slow
async def test_a_fork_has_its_own_requester(serve: Serve, there: Installation) -> None:
    """Ann started the source and Bob the fork, so he may not approve there. Without a token, nobody may."""
    till = Till()
    async with serve(payer(till), identity=there.worker) as env:
        client = client_of(env, there)
        source = await start_and_wait(client.start("payer", "go", token=there.provider.token(ANN)), "fc-1")
        fork = await client.forks.start(source.id, 2, token=there.provider.token(BOB))
        unproven = await client.forks.start(source.id, 2)
        await refused(env, there, fork, BOB)
        await refused(env, there, unproven, ANN, BOB, CLEO)
        await approved(env, there, fork, ANN)
        await fork.result()
        for invocation in (source, unproven):
            await invocation.cancel()
    assert till.paid == [5]


@pytest.mark.slow
async def test_each_message_of_a_session_has_its_own_requester(serve: Serve, there: Installation) -> None:
    """Ann sends one message and Bob the next; a repeated message is not another request."""
    till = Till()
    async with serve(payer(till), identity=there.worker) as env:
        session = client_of(env, there).session(agent="payer", session_id=env.client.task_queue)
        for sender, other in ((ANN, BOB), (BOB, ANN)):
            sent = await session.send("go", token=there.provider.token(sender))
            asked = await sent.invocation()
            await refused(env, there, asked, sender)
            await approved(env, there, asked, other)
            await asked.result()
        sent = await session.send("go")
        await refused(env, there, await sent.invocation(), ANN, BOB)
        await (await sent.invocation()).cancel()
    assert till.paid == [5, 5]


@pytest.mark.slow
async def test_a_message_with_a_token_counts_once(serve: Serve, there: Installation) -> None:
    """An attacker who repeats a recorded message starts nothing, and without its ID the token is refused."""
    till = Till()
    async with serve(payer(till, ApprovalPolicy(verified=False)), identity=there.worker) as env:
        session = client_of(env, there).session(agent="payer", session_id=env.client.task_queue)
        sent = await session.send("go", message_id="m1", token=there.provider.token(ANN))
        await wait_for_calls(await sent.invocation(), "fc-1")
        started = (await (await sent.invocation()).log()).state.input
        assert started is not None
        message = {"message": "go", "token": started.token}
        again = await session.handle.execute_update("send", message | {"message_id": "m1"})
        assert again["duplicate"]
        assert await catch_refusal(session.handle.execute_update("send", message)) == "InvalidInput"
        await session.handle.execute_update("send", message | {"message_id": "m2"})
        other = session.invocation(2)
        await other.started()
        assert (await catch_failure(other)).type == "NotAllowed"
        await (await sent.invocation()).cancel()


@pytest.mark.slow
@pytest.mark.parametrize("token", [True, False])
async def test_a_person_who_joins_an_invocation_is_a_requester_too(
    serve: Serve, there: Installation, token: bool
) -> None:
    """Ann started it and Bob joined, so Cleo must approve; without Bob's token, nobody could."""
    till, held = Till(), Held()
    async with serve(held.agent(till), identity=there.worker) as env:
        session = client_of(env, there).session(agent="payer", session_id=env.client.task_queue)
        first = await session.send("hello", token=there.provider.token(ANN))
        await held.asked.wait()
        await session.send("pay", when_busy="join", token=there.provider.token(BOB) if token else None)
        asked = await first.invocation()
        await wait_for_joined_messages(asked)
        held.go.set()
        await refused(env, there, asked, ANN, BOB, *(() if token else (CLEO,)))
        if token:
            await approved(env, there, asked, CLEO)
            await asked.result()
        else:
            await asked.cancel()
    assert till.paid == ([5] if token else [])


@pytest.mark.parametrize("name", ["run", "fork", "chat"])
async def test_commands_that_start_an_invocation_accept_a_token(
    serve: Serve, there: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The commands read the token from a file, or from the same variable as `waystation approve`."""
    monkeypatch.setenv(CLIENT_IDENTITY_ENV, str(there.folder / "clients.toml"))
    (tmp_path / "token").write_text(there.provider.token(ANN))
    async with serve(payer(Till()), identity=there.worker) as env:
        where = ("--address", env.server.address, "--task-queue", env.client.task_queue)
        id = f"{name}-{env.client.task_queue}"
        arguments: tuple[str, ...] = ("run", "payer", "go", "--id", id, "--detach")
        if name == "fork":
            source = await start_and_wait(env.client.start("payer", "go"), "fc-1")
            await source.cancel()
            arguments = ("fork", source.id, "2", "--id", id, "--detach", "--yes")
        if name == "chat":
            arguments = ("chat", "payer", "--session", id)
            id = env.client.session(agent="payer", session_id=id).invocation(1).id
        if name == "run":
            monkeypatch.setenv("WAYSTATION_TOKEN", there.provider.token(ANN))
        else:
            arguments += ("--token-file", str(tmp_path / "token"))
        arguments = (*where, *arguments)
        ran = await asyncio.to_thread(CliRunner().invoke, app, arguments, input="go\n", catch_exceptions=False)
        assert ran.exit_code == 0
        (call,) = await wait_for_calls(env.client.invocation(id), "fc-1")
        await env.client.invocation(id).cancel()
    assert call.verified_requesters == (ANN,)
