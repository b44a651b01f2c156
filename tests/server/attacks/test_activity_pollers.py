"""An attacker polls the activity queue and forges results; the activity that runs the tool is genuine."""

from typing import Any

import pytest

from tests.agents import Till
from tests.server.attacks.attackers import ANN, BOB, Attacker, activity_ended, agree, payer, recorded_reply, settled
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import sealed
from tests.steps import start_and_wait, wait_for_calls, wait_until_quiet
from tests.unit.identity.conftest import Installation
from waystation.client.agent_client import Invocation
from waystation.core.contract import ANSWER_SIGNAL
from waystation.core.payload import JsonObject

EVE = "eve@example.com"


async def test_a_late_worker_pays_after_both_approvals(serve: Serve, there: Installation) -> None:
    """This control uses different genuine workers for workflows and activities."""
    till = Till()
    async with serve(payer(till), identity=there.worker, activities=False, verify=False) as env:
        shared: dict[str, Any] = {"task_queue": env.client.task_queue, "workflows": False, "verify": False}
        async with serve(payer(till), identity=there.worker, **shared):
            invocation = await env.client.start("payer", "go")
            await agree(env, there, invocation)
            await invocation.result()
    assert till.paid == [5]


async def honest_reply(serve: Serve, there: Installation) -> JsonObject:
    """Return a genuine worker's result of the model call, which anyone may read."""
    async with serve(payer(Till()), identity=there.worker, verify=False) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        reply = await recorded_reply(invocation)
        await invocation.handle.terminate()
    return reply


@pytest.mark.parametrize("left", [{}, {"declared"}], ids=["bare", "declared"])
async def test_a_forged_model_reply_without_its_approval_gets_nothing_paid(
    serve: Serve, there: Installation, attacker: Attacker, left: set[str]
) -> None:
    """The forged call claims that no approval is needed."""
    till, reply = Till(), await honest_reply(serve, there)
    reply["calls"] = [{name: value for name, value in reply["calls"][0].items() if name in {"id", *left}}]
    async with serve(payer(till), identity=there.worker, activities=False, verify=False) as env:
        invocation = await env.client.start("payer", "go")
        await attacker.lie(env.client.task_queue, "call_model", reply)
        shared: dict[str, Any] = {"task_queue": env.client.task_queue, "workflows": False, "verify": False}
        async with serve(payer(till), identity=there.worker, **shared):
            await settled(invocation, till)


async def test_a_forged_model_reply_that_names_other_approvers_gets_nothing_paid(
    serve: Serve, there: Installation, attacker: Attacker
) -> None:
    """Eve proves her identity, but the tool's policy does not name her."""
    till, reply = Till(), await honest_reply(serve, there)
    reply["calls"][0]["approval"] = {"approvers": [EVE]}
    async with serve(payer(till), identity=there.worker, activities=False, verify=False) as env:
        invocation = await env.client.start("payer", "go")
        await attacker.lie(env.client.task_queue, "call_model", reply)
        await wait_for_calls(invocation, "fc-1")
        answer = await sealed(there, invocation, there.provider.token(EVE))
        await attacker.temporal.get_workflow_handle(invocation.id).signal(ANSWER_SIGNAL, answer)
        shared: dict[str, Any] = {"task_queue": env.client.task_queue, "workflows": False, "verify": False}
        async with serve(payer(till), identity=there.worker, **shared):
            await _decided(invocation, till)


async def test_a_forged_verification_gets_nothing_paid(serve: Serve, there: Installation, attacker: Attacker) -> None:
    """A forged verification claims that both approvers sent Eve's answer."""
    till = Till()
    async with serve(payer(till), identity=there.worker, verify=False) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
    shared: dict[str, Any] = {"task_queue": env.client.task_queue, "verify": False, "identity": there.worker}
    async with serve(payer(till), activities=False, **shared):
        stranger = attacker.temporal.get_workflow_handle(invocation.id)
        for number, subject in enumerate((ANN, BOB)):
            await stranger.signal(ANSWER_SIGNAL, await sealed(there, invocation, there.provider.token(EVE)))
            review = {
                "who": {"subject": subject, "issuer": there.provider.url},
                "nonce": f"n{number}",
                "mark": f"a{number}",
            }
            await attacker.lie(env.client.task_queue, "review_answer", review)
        async with serve(payer(till), workflows=False, **shared):
            await activity_ended(invocation, "fc-1")
            assert till.paid == []


async def _decided(invocation: Invocation, till: Till) -> None:
    """Wait until Eve's answer was verified and its effects ended; verify that nothing was paid."""
    await activity_ended(invocation, "r:s1")
    await wait_until_quiet(invocation)
    assert till.paid == []
