"""Answers that race, are repeated by a reset in flight, or are sent to another invocation's call."""

import asyncio
import base64
import functools
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import httpx2
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import RetryPolicy, WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetActivityRequest, UpdateActivityOptionsRequest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from tests.agents import Gate, Till
from tests.fakes.openid import FakeOpenId
from tests.server.attacks.attackers import ANN, BOB, Attacker, agree, payer, started
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of, sealed
from tests.server.identity.test_web_page_posts import http_api
from tests.steps import reset_run, start_and_wait, wait_for_calls, wait_until, wait_until_quiet
from tests.unit.identity.conftest import Installation, installed
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core import ids
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import ANSWER_SIGNAL, ANSWER_UPDATE
from waystation.core.errors import AnswerRefused
from waystation.core.log import AnswerVerified
from waystation.core.payload import JsonObject
from waystation.embedded import EmbeddedServer
from waystation.history import collect_attempts
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


async def test_one_of_three_racing_answers_counts(
    serve: Serve, open_server: EmbeddedServer, there: Installation
) -> None:
    """Of two approvals and a rejection sent at once, one counts; the call is paid once if that is an approval."""
    till = Till()
    async with serve(payer(till, EITHER), server=open_server, identity=there.worker, verify=False) as env:
        for order in itertools.permutations((by_signal, by_update, by_http)):
            till.paid.clear()
            invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
            answers = [
                await sealed(there, invocation, there.provider.token(subject), action=action)
                for subject, action in ((ANN, "approve"), (BOB, "reject"), (ANN, "approve"))
            ]
            await asyncio.gather(*(send(env, invocation, answer) for send, answer in zip(order, answers, strict=True)))
            await invocation.result()
            entries = (await invocation.log()).entries
            counted = [e.body for e in entries if isinstance(e.body, AnswerVerified) and e.body.refused is None]
            assert len(counted) == 1
            assert counted[0].review.who is not None
            assert till.paid == ([5] if counted[0].review.who.subject == ANN else [])


async def test_a_reset_during_a_verification_counts_the_answer_once(
    serve: Serve, own_openid: FakeOpenId, there: Installation
) -> None:
    """The reset repeats the approval while it is verified; the call is paid once."""
    till, own = Till(), installed(there.folder.parent / "own", own_openid)
    own_openid.keys_down = True
    async with serve(payer(till, EITHER), identity=own.worker, verify=False) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        await by_signal(env, invocation, await sealed(own, invocation, own_openid.token(ANN)))
        await wait_until(lambda: _asked(own_openid), "that the provider was asked")
        await reset_run(env.temporal, await invocation.history(), 3)
        own_openid.keys_down = False
        reset_invocation = env.client.invocation(invocation.id)
        await reset_invocation.result()
    assert till.paid == [5]


async def _asked(provider: FakeOpenId) -> bool:
    return provider.key_reads > 0


async def test_a_reset_does_not_spend_an_approval_again(serve: Serve, there: Installation, attacker: Attacker) -> None:
    """Anyone who may write to the namespace may reset, but one approval by both lets a call run once."""
    till = Till()
    async with serve(payer(till, effect="once"), identity=there.worker, verify=False) as env:
        invocation = await env.client.start("payer", "go")
        await agree(env, there, invocation)
        await invocation.result()
        assert till.paid == [5]
        await reset_run(attacker.temporal, await invocation.history(), 3)
        await at_rest(env.client.invocation(invocation.id))
    assert till.paid == [5]


async def at_rest(invocation: Invocation) -> None:
    """Wait until a run after a reset is waiting or has ended."""

    async def look() -> bool:
        description = (await invocation.handle.describe()).raw_description
        return not (description.pending_activities or description.HasField("pending_workflow_task"))

    await wait_until(look, "that the reset run waits or ended")


@pytest.mark.parametrize("id", ["", 'the "best" id'], ids=["an ID", "an ID that the server cannot find"])
async def test_an_approval_spent_in_one_reset_run_is_not_spent_in_another(
    serve: Serve, there: Installation, attacker: Attacker, id: str
) -> None:
    """After two resets of a waiting run, the call is approved and paid in the first new run."""
    till = Till()
    async with serve(payer(till, EITHER), identity=there.worker, verify=False) as env:
        waited = await start_and_wait(env.client.start("payer", "go", id=f"{id}{env.client.task_queue}"), "fc-1")
        before = await waited.history()
        await reset_run(attacker.temporal, before, 1)
        paying = env.client.invocation(waited.id)
        await wait_until(functools.partial(_replaced, paying, before.run_id), "the first reset")
        await wait_for_calls(paying, "fc-1")
        answer = await sealed(there, paying, there.provider.token(ANN))
        await by_signal(env, paying, answer)
        await paying.result()
        assert till.paid == [5]  # the control
        await reset_run(attacker.temporal, before, 1)
        reset_invocation = env.client.invocation(waited.id)
        await wait_for_calls(reset_invocation, "fc-1")
        await by_signal(env, reset_invocation, answer)
        await reset_invocation.result()
        assert await outcome_of(reset_invocation) == "OutcomeUnknown"
    assert till.paid == [5]


async def outcome_of(invocation: Invocation) -> str | None:
    """Return the type of error with which the first call ended."""
    outcome = (await invocation.log()).state.calls["fc-1"].outcome
    return outcome.error_type if outcome else None


async def _replaced(invocation: Invocation, run_id: str) -> bool:
    return (await invocation.handle.describe()).run_id != run_id


class SlowTill(Till):
    """A till that lets a test interfere after the first payment."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    async def pay(self, amount: int) -> dict[str, int]:  # type: ignore[override]
        """Pay somebody."""
        paid = super().pay(amount)
        if len(self.paid) == 1:
            await self.gate.passed()
        return paid


async def test_a_forged_question_does_not_let_a_call_run_twice(
    serve: Serve, there: Installation, attacker: Attacker
) -> None:
    """While the tool runs, an attacker completes its activity with another question, which the approver accepts."""
    till = SlowTill()
    async with serve(payer(till, EITHER), identity=there.worker, verify=False) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        client = client_of(env, there)
        await client.invocation(invocation.id).approve("fc-1", token=there.provider.token(ANN))
        await till.gate.reached()
        request = {"hint": "Again?", "confirmed": False}
        forged = {"function_call_id": "fc-1", "actions": {"requested_tool_confirmations": {"fc-1": request}}}
        running = attacker.temporal.get_async_activity_handle(
            workflow_id=invocation.id, run_id=None, activity_id="fc-1"
        )
        await running.complete(forged)
        await wait_for_calls(invocation, "fc-1")
        till.gate.open()
        await client.invocation(invocation.id).approve("fc-1", token=there.provider.token(BOB))
        await invocation.result()
        assert await outcome_of(invocation) == "OutcomeUnknown"
    assert till.paid == [5]


@pytest.mark.parametrize("numbered_from_1", [False, True], ids=["a second attempt", "a first attempt again"])
async def test_a_forged_failure_of_an_activity_does_not_run_its_call_again(
    serve: Serve, there: Installation, attacker: Attacker, numbered_from_1: bool
) -> None:
    """While the tool runs, an attacker allows retries, fails the activity, and resets its attempts."""
    till = SlowTill()
    async with serve(payer(till, EITHER), identity=there.worker, verify=False) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        await client_of(env, there).invocation(invocation.id).approve("fc-1", token=there.provider.token(ANN))
        await till.gate.reached()
        service, execution = attacker.temporal.workflow_service, WorkflowExecution(workflow_id=invocation.id)
        retries = ActivityOptions(retry_policy=RetryPolicy(maximum_attempts=5))
        mask = FieldMask(paths=["retry_policy.maximum_attempts"])
        await service.update_activity_options(
            UpdateActivityOptionsRequest(
                namespace="default", execution=execution, id="fc-1", activity_options=retries, update_mask=mask
            )
        )
        running = attacker.temporal.get_async_activity_handle(
            workflow_id=invocation.id, run_id=None, activity_id="fc-1"
        )
        await running.fail(ApplicationError("It failed, they say."))
        if numbered_from_1:
            await service.reset_activity(ResetActivityRequest(namespace="default", execution=execution, id="fc-1"))
        await invocation.result()
        till.gate.open()
        assert await outcome_of(invocation) == "OutcomeUnknown"
        (attempts,) = [found for found in collect_attempts([await invocation.history()]) if found.activity == "fc-1"]
        assert attempts.count == (1 if numbered_from_1 else 2)
    assert till.paid == [5]


def boss(till: Till) -> Agent:
    """Return an agent that calls the payer twice, who asks Ann or Bob each time."""

    def act(request: LlmRequest) -> LlmResponse:
        if responses(request):
            return says("Done.")
        return calls(("payer", {"request": "go"}), ("payer", {"request": "go"}))

    return Agent(name="boss", model=FunctionModel(act), tools=[AgentTool(payer(till, EITHER))])


async def test_an_answer_to_one_called_agent_counts_for_no_other(serve: Serve, there: Installation) -> None:
    """An answer counts for neither sibling nor caller, although all three calls have the same function call ID."""
    till = Till()
    async with serve(boss(till), identity=there.worker, verify=False) as env:
        invocation = await env.client.start("boss", "go")
        first, second = (env.client.invocation(ids.child_invocation(invocation.id, call)) for call in ("fc-1", "fc-2"))
        for child in (first, second):
            await wait_until(functools.partial(started, child), "the called agent")
            await wait_for_calls(child, "fc-1")
        answer = await sealed(there, first, there.provider.token(ANN))
        for other in (second, invocation):
            with pytest.raises(WorkflowUpdateFailedError):
                await env.temporal.get_workflow_handle(other.id).execute_update(ANSWER_UPDATE, answer)
            await by_signal(env, other, answer)
            await wait_until_quiet(other)
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
