"""The people of the test kit: a real worker verifies their answers, and refuses those that a policy excludes."""

import sys

import pytest

from tests.agents import Till, payer
from tests.server.conftest import Serve
from waystation.core.approval import ApprovalPolicy, Verified
from waystation.core.errors import AlreadyAnswered, NotAllowed, UnknownCall
from waystation.testing import People, ScriptedHuman

MANAGERS = ApprovalPolicy(approvers=("role:manager",))


@pytest.fixture
def people() -> People:
    """Return a gateway with new keys."""
    return People()


async def test_two_of_three_approve(serve: Serve, people: People) -> None:
    """Nobody counts twice, and the third one comes too late. The log has who approved, as verified."""
    till = Till()
    dana, sam, tom = (people(name, roles=["manager"]) for name in ("dana", "sam", "tom"))
    policy = ApprovalPolicy(approvers=("role:manager",), quorum=2)
    async with serve(payer(till.pay, approval=policy), identity=people.identity) as env:
        invocation = await env.client.start("payer", "go")
        assert (await dana.approve(invocation, "fc-1"))["lacking"] == 1
        with pytest.raises(AlreadyAnswered, match="1 more approval from other people"):
            await dana.approve(invocation, "fc-1")
        assert till.paid == []
        await sam.approve(invocation)
        for call_id in ("fc-1", None):
            with pytest.raises(AlreadyAnswered, match="already answered by 'sam'"):
                await tom.approve(invocation, call_id)
        decided_by = (await invocation.log()).state.calls["fc-1"].decided_by
    assert decided_by == Verified(subject="sam", roles=("manager",), issuer="https://approvals.example.com")
    assert till.paid == [5]


async def test_the_requester_is_refused(serve: Serve, people: People) -> None:
    """A colleague may approve the call."""
    till = Till()
    ann, dana = people("ann"), people("dana")
    agent = payer(till.pay, approval=ApprovalPolicy(not_requester=True))
    async with serve(agent, identity=people.identity) as env:
        invocation = await env.client.start("payer", "go", token=ann.token)
        with pytest.raises(NotAllowed, match="'ann' requested call 'fc-1'"):
            await ann.approve(invocation, "fc-1")
        await dana.approve(invocation, "fc-1")
        assert (await invocation.result()).text == "Done."
    assert till.paid == [5]


async def test_only_people_with_the_role_decide(serve: Serve, people: People) -> None:
    """The name of a role, the keys of another gateway and an unverified name prove nothing. A manager may reject."""
    till = Till()
    async with serve(payer(till.pay, approval=MANAGERS), identity=people.identity) as env:
        invocation = await env.client.start("payer", "go")
        for outsider in (people("eve"), people("manager", roles=["intern"]), People()("dana", roles=["manager"])):
            with pytest.raises(NotAllowed):
                await outsider.approve(invocation, "fc-1")
        with pytest.raises(NotAllowed, match="verified identity"):
            await invocation.approve("fc-1", by="dana")
        await people("dana", roles=["manager"]).reject(invocation, "fc-1", comment="Too late.")
        assert (await invocation.result()).text == "Done."
        with pytest.raises(UnknownCall):
            await people("dana", roles=["manager"]).approve(invocation, "fc-2")
    assert till.paid == []


async def test_a_manager_edits(serve: Serve, people: People) -> None:
    """The tool runs with the arguments of the manager, or of a script that answers with the manager's token."""
    till = Till()
    dana = people("dana", roles=["manager"])
    edit = {"action": "edit", "args": {"amount": 3}, "token": dana.token}
    async with serve(payer(till.pay, approval=MANAGERS), identity=people.identity) as env:
        edited = await env.client.start("payer", "go")
        await dana.edit(edited, {"amount": 4}, "fc-1")
        await edited.result()
    async with serve(payer(till.pay, approval=MANAGERS), identity=people.identity) as env:
        await ScriptedHuman(edit).attend(await env.client.start("payer", "go"))
    assert till.paid == [4, 3]


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity extra provides it."""
    for name in [name for name in sys.modules if name.startswith("waystation.approvers.identity")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.setitem(sys.modules, "joserfc.jwk", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'waystation\[identity\]'"):
        People()
