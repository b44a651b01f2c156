"""The test kit drives the web application: its pages, forms and JSON routes, as a person with roles."""

import sys
from http import HTTPStatus

import pytest

from tests.agents import Till, payer
from tests.server.conftest import Serve
from tests.steps import start_and_wait, wait_for_calls
from waystation.core import ids
from waystation.core.approval import ApprovalPolicy
from waystation.testing import AgentEnvironment, People, VerifiedPerson
from waystation.testing.web_client import WebClient

MANAGERS = ApprovalPolicy(approvers=("role:manager",), not_requester=True)


@pytest.fixture
def people() -> People:
    """Return a gateway with new keys."""
    return People()


async def test_a_person_approves_with_a_form(serve: Serve, people: People) -> None:
    """The inbox has the call, and the log has the person as verified."""
    till, dana = Till(), people("dana", roles=["manager"])
    async with serve(payer(till.pay, approval=MANAGERS), identity=people.identity) as env:
        invocation = await start_and_wait(env.client.start("payer", "go", token=people("ann").token))
        call_id = ids.approval(invocation.id, "fc-1")
        async with WebClient(env, dana) as web:
            await web.see("/approvals", invocation.id)
            answered = await web.answer(call_id, "approve", comment="As agreed.")
        await invocation.result()
        call = (await invocation.log()).state.calls["fc-1"]
    assert (answered.status_code, till.paid) == (HTTPStatus.OK, [5])
    assert (call.decided_by, call.answer and call.answer.comment) == (
        dana.verified.model_copy(update={"issuer": "https://approvals.example.com"}),
        "As agreed.",
    )


async def test_a_person_edits_with_a_form(serve: Serve, people: People) -> None:
    """The tool runs with what the person entered."""
    till = Till()
    async with serve(payer(till.pay), identity=people.identity) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"))
        async with WebClient(env) as web:
            edited = await web.answer(ids.approval(invocation.id, "fc-1"), "edit", args='{"amount": 3}')
        await invocation.result()
    assert (edited.status_code, till.paid) == (HTTPStatus.OK, [3])


async def test_a_person_starts_over_json_and_stops(serve: Serve, people: People) -> None:
    """The person is the verified requester, whose own approval the policy refuses. The role is needed to start."""
    till, ann = Till(), people("ann", roles=["manager"])
    async with serve(payer(till.pay, approval=MANAGERS), identity=people.identity) as env:
        body = {"agent": "payer", "message": "go"}
        async with WebClient(env, ann) as web:
            refused = await web.post("/api/invocations", json=body)
        async with WebClient(env, ann, grant=["author"]) as web:
            started = await web.post("/api/invocations", json=body)
            invocation = env.client.invocation(started.json()["invocation_id"])
            await wait_for_calls(invocation, "fc-1")
            with pytest.raises(LookupError, match="&#39;ann&#39; requested"):
                await web.answer(ids.approval(invocation.id, "fc-1"), "approve")
            stopped = await web.post(f"/invocations/{invocation.id}/stop", data={"csrf": web.csrf})
    statuses = [response.status_code for response in (refused, started, stopped)]
    assert statuses == [HTTPStatus.FORBIDDEN, HTTPStatus.CREATED, HTTPStatus.OK]
    assert till.paid == []


async def test_a_stranger_sees_nothing_to_answer(serve: Serve, people: People) -> None:
    """The page of another person's call is refused as for a call that does not exist, and offers no form."""
    async with serve(payer(Till().pay, approval=MANAGERS), identity=people.identity) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"))
        async with WebClient(env, people("eve")) as web:
            with pytest.raises(LookupError, match=r"\(404\) offers no form"):
                await web.answer(ids.approval(invocation.id, "fc-1"), "approve")
        await invocation.cancel()


@pytest.mark.parametrize("person", [None, People()("dana")], ids=["anyone", "dana"])
def test_an_unknown_role_is_not_granted(person: VerifiedPerson | None) -> None:
    """The error names the role and the roles that there are."""
    with pytest.raises(ValueError, match=r"'manager' is not a role .* Use approver, author, operator, viewer"):
        WebClient(AgentEnvironment(), person, grant=["manager"])  # type: ignore[list-item]  # a mistake of a test


def test_a_missing_package_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The extra for tests provides it."""
    monkeypatch.delitem(sys.modules, "waystation.testing.web_client")
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs 'httpx2'. .*pip install 'waystation\[testing\]'"):
        request.getfixturevalue("waystation_web")
