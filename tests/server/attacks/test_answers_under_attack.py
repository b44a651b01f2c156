"""Answers that race, are sent again by a reset while they are in flight, or go to the call of another invocation."""

import asyncio
import base64
import functools
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import httpx2
import pytest
from temporalio.client import WorkflowUpdateFailedError

from tests.fakes.openid import FakeOpenId
from tests.server.attacks.attackers import ANN, BOB, Attacker, agree, payer, started
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of, sealed
from tests.server.identity.test_web_page_posts import http_api
from tests.server.workflows.outside import Till, quiet, reset, until, waiting
from tests.unit.identity.conftest import Installation, installed
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core import ANSWER_SIGNAL, ANSWER_UPDATE, AnswerRefused, AnswerVerified, ApprovalPolicy, JsonObject, ids
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, calls, responses, says
from waystation.tools import AgentTool

Send: TypeAlias = Callable[[AgentEnvironment, Invocation, JsonObject], Awaitable[None]]
EITHER = ApprovalPolicy(approvers=(ANN, BOB))
EVE = "eve@example.com"


async def by_signal(env: AgentEnvironment, invocation: Invocation, answer: JsonObject) -> None:
    """Send an answer as a signal."""
    await env.temporal.get_workflow_handle(invocation.id).signal(ANSWER_SIGNAL, answer)


async def by_update(env: AgentEnvironment, invocation: Invocation, answer: JsonObject) -> None:
    """Send an answer as an update, which is refused if it comes late."""
    try:
        await env.temporal.get_workflow_handle(invocation.id).execute_update(ANSWER_UPDATE, answer)
    except WorkflowUpdateFailedError:
        return


async def by_http(env: AgentEnvironment, invocation: Invocation, answer: JsonObject) -> None:
    """Send an answer by the HTTP API of the server."""
    data = base64.b64encode(json.dumps(answer).encode()).decode()
    payload = {"metadata": {"encoding": base64.b64encode(b"json/plain").decode()}, "data": data}
    async with httpx2.AsyncClient(timeout=10) as client:
        url = f"{await http_api(env.server)}/workflows/{invocation.id}/signal/{ANSWER_SIGNAL}"
        assert (await client.post(url, json={"input": {"payloads": [payload]}})).status_code == 200


@pytest.mark.parametrize("order", list(itertools.permutations((by_signal, by_update, by_http))))
async def test_of_answers_that_race_over_three_channels_one_counts(
    serve: Serve, there: Installation, order: Sequence[Send]
) -> None:
    """Two approvals and a rejection at once: the call is paid once if an approval won, and never if it did not."""
    till = Till()
    async with serve(payer(till, EITHER), identity=there.worker, verify=False) as env:
        invocation = await env.client.start("payer", "go")
        await waiting(invocation, "fc-1")
        answers = [
            sealed(there, invocation, there.provider.token(subject), action=action)
            for subject, action in ((ANN, "approve"), (BOB, "reject"), (ANN, "approve"))
        ]
        await asyncio.gather(*(send(env, invocation, answer) for send, answer in zip(order, answers, strict=True)))
        await invocation.result()
        entries = (await invocation.log()).entries
        counted = [e.body for e in entries if isinstance(e.body, AnswerVerified) and e.body.refused is None]
        assert len(counted) == 1
        assert counted[0].review.who is not None
        assert till.paid == ([5] if counted[0].review.who.subject == ANN else [])


async def test_a_reset_while_an_answer_is_in_flight_has_it_count_once(
    serve: Serve, own_openid: FakeOpenId, there: Installation
) -> None:
    """The approval is being verified when the reset comes, which sends it again; the call is paid once."""
    till, own = Till(), installed(there.folder.parent / "own", own_openid)
    own_openid.keys_down = True
    async with serve(payer(till, EITHER), identity=own.worker, verify=False) as env:
        invocation = await env.client.start("payer", "go")
        await waiting(invocation, "fc-1")
        await by_signal(env, invocation, sealed(own, invocation, own_openid.token(ANN)))
        await until(lambda: _asked(own_openid), "that the provider was asked")
        await reset(env.temporal, await invocation.history(), 3)
        own_openid.keys_down = False
        again = env.client.invocation(invocation.id)
        await again.result()
    assert till.paid == [5]


async def _asked(provider: FakeOpenId) -> bool:
    return provider.key_reads > 0


@pytest.mark.xfail(strict=True, reason="A reset sends sealed answers again, and the call runs again under its key.")
async def test_a_reset_does_not_spend_an_approval_again(serve: Serve, there: Installation, attacker: Attacker) -> None:
    """Whoever may write to the namespace may reset, but one approval by both lets a call run once."""
    till = Till()
    async with serve(payer(till, effect="once"), identity=there.worker, verify=False) as env:
        invocation = await env.client.start("payer", "go")
        await agree(env, there, invocation)
        await invocation.result()
        assert till.paid == [5]
        history = await invocation.history()
        await reset(attacker.temporal, history, 3)
        again = env.client.invocation(invocation.id)

        async def moved_on() -> bool:
            return (await again.handle.describe()).run_id != history.run_id and not await _busy(again)

        await until(moved_on, "that the reset run waits or ended")
    assert till.paid == [5]


async def _busy(invocation: Invocation) -> bool:
    description = (await invocation.handle.describe()).raw_description
    return bool(description.pending_activities) or description.HasField("pending_workflow_task")


def boss(till: Till) -> Agent:
    """Return an agent that calls the payer twice, who asks Ann or Bob each time."""

    def act(request: LlmRequest) -> LlmResponse:
        if responses(request):
            return says("Done.")
        return calls(("payer", {"request": "go"}), ("payer", {"request": "go"}))

    return Agent(name="boss", model=FunctionModel(act), tools=[AgentTool(payer(till, EITHER))])


async def test_an_answer_to_the_call_of_one_called_agent_counts_for_no_other(serve: Serve, there: Installation) -> None:
    """Neither for its sibling, nor for its caller, though all three calls have the same function call ID."""
    till = Till()
    async with serve(boss(till), identity=there.worker, verify=False) as env:
        invocation = await env.client.start("boss", "go")
        first, second = (env.client.invocation(ids.child_invocation(invocation.id, call)) for call in ("fc-1", "fc-2"))
        for child in (first, second):
            await until(functools.partial(started, child), "the called agent")
            await waiting(child, "fc-1")
        answer = sealed(there, first, there.provider.token(ANN))
        for other in (second, invocation):
            with pytest.raises(WorkflowUpdateFailedError):
                await env.temporal.get_workflow_handle(other.id).execute_update(ANSWER_UPDATE, answer)
            await by_signal(env, other, answer)
            await quiet(other)
        eve = there.provider.token(EVE)
        with pytest.raises(AnswerRefused):
            await client_of(env, there).invocation(first.id).approve("fc-1", token=eve)
        assert till.paid == []
        await by_update(env, first, answer)  # the control
        await first.result()
        assert till.paid == [5]
        await client_of(env, there).invocation(second.id).reject("fc-1", token=there.provider.token(BOB))
        await invocation.result()
    assert till.paid == [5]
