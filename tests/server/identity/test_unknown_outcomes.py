"""Only verified operators state whether a call took effect that verified people had to approve."""

import pytest

from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of
from tests.server.workflows.test_unknown_outcomes import PAY_AND_ASK, Bank, asked, payer
from tests.steps import tool_responses, wait_for_ignored_answers, wait_for_model_calls, wait_until
from tests.unit.identity.conftest import Installation
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import ANSWER_SIGNAL
from waystation.core.errors import NotAllowed
from waystation.testing import says

POLICY = ApprovalPolicy(approvers=("dana@example.com",), operators=("role:ops",))


async def test_a_verified_operator_starts_an_approved_call_again(serve: Serve, there: Installation) -> None:
    """A raw signal and an approver change nothing. The worker runs the call again with the proof of the answer."""
    bank = Bank(lost=1)
    replies = says("Waiting."), says("Paid."), says("Done.")
    agent, model = payer(bank, PAY_AND_ASK, *replies, effect=None, approval=POLICY)
    async with serve(agent, identity=there.worker) as env:
        client = client_of(env, there)
        invocation = await env.client.start("agent", "go")
        await wait_until(invocation.pending, "a call to approve")
        await client.invocation(invocation.id).approve("fc-1", token=there.provider.token("dana@example.com", roles=[]))
        question = client.invocation((await asked(env, invocation)).invocation_id)
        claim = {"function_call_id": "fc-1", "action": "ran", "by": "olga", "verified": {"subject": "olga"}}
        await question.handle.signal(ANSWER_SIGNAL, claim)
        assert await wait_for_ignored_answers(question, 1) == ["NotAllowed"]
        with pytest.raises(NotAllowed):
            await question.answer("start_again", token=there.provider.token("dana@example.com", roles=[]))
        await question.answer("start_again", token=there.provider.token("olga@example.com", roles=["ops"]))
        request = await wait_for_model_calls(model, 3)
        await invocation.respond({"ok": True}, "fc-2")
        await invocation.result()
    assert bank.keys == [f"{invocation.id}/fc-1"] * 2
    assert {"paid": 5} in tool_responses(request)
