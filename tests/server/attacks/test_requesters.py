"""Policies that bar whoever asked for a call from approving it, and somebody who asks under another name."""

import unicodedata

import pytest

from tests.server.attacks.attackers import Attacker, payer, settled
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of
from tests.server.workflows.outside import Till, waiting
from tests.unit.identity.conftest import Installation
from waystation.core import ApprovalPolicy, JsonObject, NotAllowed

OTHERS = ApprovalPolicy(not_requester=True)
ZOE = "zoë@example.com"
CLAIMED = pytest.mark.xfail(strict=True, reason="Who asked is what the start claims, which nobody verified.")


@pytest.mark.parametrize(
    "names",
    [
        {"user_id": ZOE},
        {"user_id": ZOE.upper()},
        {"user_id": unicodedata.normalize("NFD", ZOE)},
        {"user_id": f"mailto:{ZOE}"},
        {"user_id": f" {ZOE} "},
        {"user_id": "bob@example.com", "requester": ZOE.upper()},
        pytest.param({"user_id": f"Zoë <{ZOE}>"}, marks=CLAIMED),
        pytest.param({"user_id": "248289761001"}, marks=CLAIMED),
        pytest.param({"user_id": "zoë"}, marks=CLAIMED),
        pytest.param({"user_id": "bob@example.com", "requester": "bob@example.com"}, marks=CLAIMED),
        pytest.param({}, marks=CLAIMED),
    ],
    ids=[
        "equal",
        "case",
        "NFD",
        "mailto",
        "spaces",
        "as requester",
        "display name",
        "opaque",
        "short",
        "other",
        "none",
    ],
)
async def test_whoever_asked_cannot_approve_under_whatever_name_they_asked(
    serve: Serve, there: Installation, attacker: Attacker, names: JsonObject
) -> None:
    """Zoë starts the invocation with a stock client and names whom she likes; then she approves as herself."""
    till = Till()
    async with serve(payer(till, OTHERS), identity=there.worker, verify=False) as env:
        handle = await attacker.temporal.start_workflow(
            "AgentInvocation",
            {"agent": "payer", "message": "go", **names},
            id=f"zoe-{env.client.task_queue}",
            task_queue=env.client.task_queue,
        )
        invocation = env.client.invocation(handle.id)
        await waiting(invocation, "fc-1")
        with pytest.raises(NotAllowed):
            await client_of(env, there).invocation(invocation.id).approve("fc-1", token=there.provider.token(ZOE))
        assert await settled(invocation, till)


@pytest.mark.xfail(strict=True, reason="A start cannot carry a token.", raises=TypeError)
async def test_somebody_else_approves_what_a_verified_requester_asked_for(serve: Serve, there: Installation) -> None:
    """The control: the start carries Zoë's sealed token, so Bob may approve and she may not."""
    till = Till()
    async with serve(payer(till, OTHERS), identity=there.worker, verify=False) as env:
        client = client_of(env, there)
        asked = await client.start("payer", "go", token=there.provider.token(ZOE))  # type: ignore[call-arg]
        await waiting(asked, "fc-1")
        with pytest.raises(NotAllowed):
            await asked.approve("fc-1", token=there.provider.token(ZOE))
        await asked.approve("fc-1", token=there.provider.token("bob@example.com"))
        await asked.result()
    assert till.paid == [5]
