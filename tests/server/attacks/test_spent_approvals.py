"""An approval does not count again in forks, in later calls, or for a second invocation with the same ID."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.agents import Till
from tests.programs import run
from tests.server.attacks.attackers import ANN, BOB, Attacker, agree, payer, settled
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of, sealed
from tests.steps import catch_failure, start_and_wait, wait_for_calls, wait_until, wait_until_quiet
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import ANSWER_SIGNAL, Settings
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, calls, latest_turn, says
from waystation.tools import FunctionTool, LongRunningFunctionTool, ToolContext

SOLO = ApprovalPolicy(approvers=(ANN,))


def ask(purpose: str) -> None:
    """Ask whether a payment may be made."""


def asking_first(till: Till) -> Agent:
    """Return an agent that asks its approver in one call, and then pays in another."""

    def act(request: LlmRequest) -> LlmResponse:
        _, results = latest_turn(request)
        match results:
            case []:
                return calls(("ask", {"purpose": "rent"}))
            case [_]:
                return calls(("pay", {"amount": 5}))
            case _:
                return says("Paid.")

    tools = [LongRunningFunctionTool(ask, approval=SOLO), FunctionTool(till.pay, effect="once")]
    return Agent(name="payer", model=FunctionModel(act), tools=tools)


def asking_inside(till: Till) -> Agent:
    """Return an agent whose tool asks for the approval in its own code."""

    def pay(amount: int, tool_context: ToolContext) -> dict[str, int]:
        """Pay."""
        if not tool_context.tool_confirmation:
            tool_context.request_confirmation(hint="Pay?")
            return {"paid": 0}
        return till.pay(amount)

    def act(request: LlmRequest) -> LlmResponse:
        _, results = latest_turn(request)
        return says("Paid.") if results else calls(("pay", {"amount": 5}))

    return Agent(name="payer", model=FunctionModel(act), tools=[FunctionTool(pay, approval=SOLO, effect="once")])


async def approve(env: AgentEnvironment, there: Installation, invocation: Invocation, subject: str = ANN) -> None:
    """Approve the first call."""
    await wait_for_calls(invocation, "fc-1")
    token = there.provider.token(subject)
    await client_of(env, there).invocation(invocation.id).approve("fc-1", token=token)


async def forked_at_every_event(env: AgentEnvironment, source: Invocation) -> list[Invocation]:
    """Return a fork of the source at each event of it."""
    count = len((await source.log()).state.events)
    forks = []
    for event in range(1, count + 1):
        params = {"agent": "payer", "message": "go", "fork": {"invocation_id": source.id, "event": event}}
        handle = await env.temporal.start_workflow(
            "AgentInvocation", params, id=f"{source.id}-f{event}", task_queue=env.client.task_queue
        )
        forks.append(env.client.invocation(handle.id))
    return forks


@pytest.mark.parametrize(
    "agent",
    [asking_first, asking_inside, lambda till: payer(till, SOLO, effect="once")],
    ids=["a call that asks", "a tool that asks", "a policy"],
)
async def test_no_fork_spends_the_approval_of_its_source(serve: Serve, there: Installation, agent: Any) -> None:
    """As a control, the source pays once; forks at each of its events pay nothing without a new approval."""
    till = Till()
    async with serve(agent(till), identity=there.worker, verify=False) as env:
        source = await env.client.start("payer", "go")
        await approve(env, there, source)
        await source.result()
        assert till.paid == [5]
        till.paid.clear()
        for fork in await forked_at_every_event(env, source):
            await settled(fork, till)


async def test_a_supplied_result_is_not_the_answer_of_an_approver(serve: Serve, there: Installation) -> None:
    """A call for verified approvers is pending in the fork, whatever result the fork received."""
    till = Till()
    async with serve(asking_first(till), identity=there.worker, verify=False) as env:
        source = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        fork_params = {"invocation_id": source.id, "event": 2, "results": {"fc-1": {"approved": True, "by": ANN}}}
        handle = await env.temporal.start_workflow(
            "AgentInvocation",
            {"agent": "payer", "message": "go", "fork": fork_params},
            id=f"{source.id}-supplied",
            task_queue=env.client.task_queue,
        )
        await settled(env.client.invocation(handle.id), till)


async def test_a_fork_needs_the_consent_of_the_worker(serve: Serve) -> None:
    """A worker without `--allow-forks` refuses it and names the option."""
    till = Till()
    async with serve(payer(till, SOLO), settings=Settings(), verify=False) as env:
        source = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        handle = await env.temporal.start_workflow(
            "AgentInvocation",
            {"agent": "payer", "message": "go", "fork": {"invocation_id": source.id, "event": 1}},
            id=f"{source.id}-fork",
            task_queue=env.client.task_queue,
        )
        fork = env.client.invocation(handle.id)

        async def refused() -> bool:
            assert not await fork.pending()
            return (await fork.handle.describe()).close_time is not None

        await wait_until(refused, "that the fork was refused")
        assert "--allow-forks" in (await catch_failure(fork)).message


def test_the_consent_to_forks_is_an_option_of_the_worker() -> None:
    """`waystation worker` accepts the option `--allow-forks`."""
    assert run("check", "--only", "workflows", "--allow-forks").returncode == 0


async def answers_in(invocation: Invocation) -> list[JsonObject]:
    """Return the sent answers, which anyone may read in the history."""
    answers: list[JsonObject] = []
    for event in (await invocation.handle.fetch_history()).events:
        update = event.workflow_execution_update_accepted_event_attributes.accepted_request.input.args.payloads
        for payload in (*update, *event.workflow_execution_signaled_event_attributes.input.payloads):
            answers.append(json.loads(payload.data))
    return answers


def pays_the_amount() -> FunctionModel:
    """Return a model that pays the amount in the message."""

    def act(request: LlmRequest) -> LlmResponse:
        text, results = latest_turn(request)
        return says("Paid.") if results else calls(("pay", {"amount": int(text)}))

    return FunctionModel(act)


@pytest.mark.parametrize("amount", [5, 5_000])
async def test_an_answer_does_not_count_in_a_later_invocation_with_the_same_id(
    serve: Serve, there: Installation, attacker: Attacker, amount: int
) -> None:
    """The sealed answers are readable in the history, but approve nothing when they are sent again."""
    till = Till()
    async with serve(payer(till, model=pays_the_amount()), identity=there.worker, verify=False) as env:
        id = f"rent-{env.client.task_queue}"
        first = await env.client.start("payer", "5", id=id)
        await agree(env, there, first)
        await first.result()
        assert till.paid == [5]  # the control
        stolen = await answers_in(first)
        till.paid.clear()
        params = {"agent": "payer", "message": str(amount)}
        handle = await attacker.temporal.start_workflow(
            "AgentInvocation", params, id=id, task_queue=env.client.task_queue
        )
        later = env.client.invocation(id)
        await wait_for_calls(later, "fc-1")
        for answer in stolen:
            await handle.signal(ANSWER_SIGNAL, answer)
        await reviewed(later, len(stolen))
        assert till.paid == []
        assert (await wait_for_calls(later, "fc-1"))[0].approved_by == ()


CASES: list[tuple[JsonObject, bool]] = [
    ({"run": None}, False),
    ({"digest": None}, False),
    ({"run": "0" * 32}, False),
    ({}, True),
]


async def test_an_answer_with_a_token_names_the_run_and_the_digest(serve: Serve, there: Installation) -> None:
    """A stock client that omits one of them, or names another run, approves nothing."""
    till = Till()
    async with serve(payer(till, SOLO), identity=there.worker, verify=False) as env:
        for changes, counts in CASES:
            invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
            answer = await sealed(there, invocation, there.provider.token(ANN), **changes)
            await invocation.handle.signal(ANSWER_SIGNAL, answer)
            await reviewed(invocation, 1)
            assert till.paid == ([5] if counts else [])


async def reviewed(invocation: Invocation, count: int) -> None:
    """Wait until this many answers counted or were ignored, and their effects ended."""

    async def look() -> bool:
        kinds = [type(entry.body).__name__ for entry in (await invocation.log()).entries]
        return sum(kind in ("AnswerVerified", "AnswerCounted", "AnswerIgnored") for kind in kinds) >= count

    await wait_until(look, f"{count} answers")
    await wait_until_quiet(invocation)


async def remember(env: AgentEnvironment, there: Installation, session_id: str, asked_for: Sequence[str]) -> Invocation:
    """Approve a call in a session as both approvers, some of them also for later calls; send the second message."""
    session = env.client.session(agent="payer", session_id=session_id)
    first = await (await session.send("go")).invocation()
    await wait_for_calls(first, "fc-1")
    for subject in (ANN, BOB):
        wish = {"remember": True} if subject in asked_for else {}
        token = there.provider.token(subject)
        await client_of(env, there).invocation(first.id).approve("fc-1", token=token, **wish)
    await first.result()
    return await (await session.send("again")).invocation()


@pytest.mark.parametrize(
    "asked_for",
    [(), (ANN,), (BOB,)],
)
async def test_one_approver_cannot_remember_an_approval_for_both(
    serve: Serve, there: Installation, asked_for: Sequence[str]
) -> None:
    """All approvers of a quorum must ask for it; `test_parents` shows that they may."""
    till = Till()
    async with serve(payer(till), identity=there.worker, verify=False) as env:
        second_turn = await remember(env, there, env.client.task_queue, asked_for)
        till.paid.remove(5)
        assert await settled(second_turn, till)


async def test_both_approvers_can_remember_an_approval(serve: Serve, there: Installation) -> None:
    """As a control, a call runs if both approvers remembered an approval for it."""
    till = Till()
    async with serve(payer(till), identity=there.worker, verify=False) as env:
        await (await remember(env, there, env.client.task_queue, (ANN, BOB))).result()
    assert till.paid == [5, 5]
