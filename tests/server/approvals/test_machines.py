"""Machines answer calls: through a signed URL or, without a key for them, through any Temporal client."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx2 as httpx
import pytest

from tests.agents import speaks
from tests.server.conftest import Serve
from tests.server.web.sites import site
from tests.steps import start_and_wait
from waystation import External
from waystation.agents import Agent
from waystation.approvers import Gatekeeper
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy, CompletionGrant
from waystation.core.errors import InvalidAnswer, NotAllowed
from waystation.core.log import AnswerCounted, AnswerIgnored
from waystation.core.payload import JsonObject
from waystation.testing import Machine, People, ScriptedHuman, calls, says
from waystation.tools import LongRunningFunctionTool, ToolContext

CLAIM = calls(("assess", {"claim": 7}))
PAID = {"status": "paid"}


class Claims:
    """An external system, which keeps the completion URLs that it receives."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    def assess(self, claim: int, tool_context: ToolContext) -> JsonObject:
        """Have a claim assessed."""
        self.urls.append(tool_context.completion_url())
        tool_context.state["temp:asked"] = True
        return {"status": "sent", "debug": f"sent {self.urls[-1]}"}

    def token(self) -> str:
        """Return the token of the latest URL."""
        return self.urls[-1].rpartition("/")[2]


def assess(claim: int) -> None:
    """Have a claim assessed."""


def assessor(function: Callable[..., Any] = assess, *replies: Any, **options: Any) -> Agent:
    """Return an agent whose claims the machine `claims` assesses."""
    tool = LongRunningFunctionTool(function, **{"answered_by": External("claims"), **options})
    return speaks("assessor", *(replies or (CLAIM, *[says("Done.")] * 3)), tools=[tool])


@pytest.fixture
def people() -> People:
    """Return a gateway with new keys, one of them for completion URLs."""
    return People()


def gatekeeper(people: People) -> Gatekeeper:
    """Return the gatekeeper of the people, which has the key for completion URLs."""
    return people._gatekeeper


async def ignored(invocation: Invocation) -> list[tuple[str, str | None]]:
    """Return the reason and the author of each ignored answer."""
    entries = (await invocation.log()).entries
    return [(entry.body.reason, entry.body.by) for entry in entries if isinstance(entry.body, AnswerIgnored)]


async def test_people_cannot_answer_for_a_machine(serve: Serve) -> None:
    """Each way of answering is refused with a reason, and a signal is recorded. The machine's answer counts."""
    async with serve(assessor()) as env:
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        for action, fields in (("approve", {}), ("reject", {}), ("respond", {"response": PAID}), ("claim", {})):
            with pytest.raises(NotAllowed, match="The machine 'claims' answers call 'fc-1', so people cannot"):
                await invocation.answer(action, "fc-1", by="dana", **fields)  # type: ignore[arg-type]  # any action
        await invocation.answer("approve", "fc-1", by="dana", signal=True)
        listed = await env.client.approvals.pending()
        assert invocation.id not in [call.invocation_id for call in listed]
        await Machine("claims").progress(invocation, {"step": 1})
        await Machine("claims").respond(invocation, PAID)
        assert (await invocation.result()).text == "Done."
        log = await invocation.log()
        assert await ignored(invocation) == [("NotAllowed", "dana")]
    assert log.state.calls["fc-1"].answered_by == "machine:claims"
    counted = [entry.body.answer.action for entry in log.entries if isinstance(entry.body, AnswerCounted)]
    assert counted == ["progress", "respond"]


async def test_an_operator_replaces_a_silent_machine(serve: Serve) -> None:
    """The replacement needs a name and a comment. The model receives exactly the response; the rest is recorded."""
    async with serve(assessor()) as env:
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        listed = [call async for call in env.client.approvals.each(machines=True)]
        (call,) = [call for call in listed if call.invocation_id == invocation.id]
        assert (call.machine, call.progress_at) == ("claims", None)
        with pytest.raises(InvalidAnswer, match="requires a `comment`"):
            await invocation.answer("replace", "fc-1", by="olga", response=PAID)
        with pytest.raises(NotAllowed, match="'machine:claims' is a machine"):
            await invocation.answer("replace", "fc-1", by="machine:claims", response=PAID, comment="mine")
        await invocation.answer("replace", "fc-1", by="olga", response=PAID, comment="The claims desk called.")
        assert (await invocation.result()).text == "Done."
        log = await invocation.log()
    notes = [event.custom_metadata for event in log.state.events if event.custom_metadata]
    assert notes == [
        {
            "approval": {
                "function_call_id": "fc-1",
                "action": "replace",
                "by": "olga",
                "comment": "The claims desk called.",
            }
        }
    ]
    responded = [part["response"] for event in log.state.events for part in event.function_responses()]
    assert responded == [PAID]


async def test_only_calls_of_machines_can_be_replaced(serve: Serve) -> None:
    """People answer other long-running calls, as before."""
    async with serve(assessor(answered_by=None)) as env:
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        for action, fields in (("replace", {"response": PAID, "comment": "why"}), ("revoke", {})):
            with pytest.raises(InvalidAnswer, match="accepts"):
                await invocation.answer(action, "fc-1", by="olga", **fields)  # type: ignore[arg-type]  # any action
        await ScriptedHuman({"action": "respond", "response": PAID}).attend(invocation)


async def test_a_scripted_person_leaves_the_calls_of_machines_alone(serve: Serve) -> None:
    """The person approves that the tool starts; the machine answers."""
    async with serve(assessor(approval=ApprovalPolicy())) as env:
        invocation = await env.client.start("assessor", "go")
        human = ScriptedHuman("approve", "reject")
        await asyncio.gather(human.attend(invocation), Machine("claims").respond(invocation, PAID))
    assert [call.kind for call in human.asked] == ["confirmation"]


async def test_people_with_roles_allow_the_call_and_the_machine_answers_it(serve: Serve, people: People) -> None:
    """The policy is for the start only. A machine counts neither in its quorum nor as one of its approvers."""
    claims = Claims()
    policy = ApprovalPolicy(approvers=("role:manager",), quorum=2, deadline=timedelta(hours=1))
    async with serve(assessor(claims.assess, approval=policy), identity=people.identity) as env:
        invocation = await env.client.start("assessor", "go")
        await people("dana", roles=["manager"]).approve(invocation)
        with pytest.raises(NotAllowed):
            await people.machine("claims").respond(invocation, PAID, "fc-1")
        assert claims.urls == []
        await people("sam", roles=["manager"]).approve(invocation, "fc-1")
        await people.machine("claims").respond(invocation, PAID)
        assert (await invocation.result()).text == "Done."
    assert len(claims.urls) == 1


async def test_the_url_is_the_only_proof_and_never_recorded(serve: Serve, people: People) -> None:
    """Names prove nothing if workers have the key. The token that the history has is for one answer only."""
    claims = Claims()
    async with serve(assessor(claims.assess), identity=people.identity) as env:
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        with pytest.raises(NotAllowed, match="verified identity"):
            await Machine("claims").respond(invocation, PAID)
        for outsider in (people("claims"), people("dana", roles=["waystation-operator"])):
            with pytest.raises(NotAllowed, match="so people cannot"):
                await outsider.answer(invocation, "respond", "fc-1", response=PAID)
        with pytest.raises(NotAllowed, match="machine"):
            await people.machine("orders").respond(invocation, PAID, "fc-1")
        with pytest.raises(NotAllowed):
            await People().machine("claims").respond(invocation, PAID, "fc-1")
        await people.machine("claims").respond(invocation, PAID)
        await invocation.result()
        log, history = await invocation.log(), (await invocation.handle.fetch_history()).to_json()
    decided_by = log.state.calls["fc-1"].decided_by
    assert decided_by is not None
    assert decided_by.subject == "machine:claims"
    interim = next(part["response"] for event in log.state.events for part in event.function_responses())
    assert interim["status"] == "sent"
    assert claims.token() not in json.dumps([interim, history])


async def test_an_operator_must_be_one(serve: Serve, people: People) -> None:
    """With verification, only people with the role replace a machine, or revoke its URLs."""
    claims = Claims()
    async with serve(assessor(claims.assess), identity=people.identity) as env:
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        fields: JsonObject = {"response": PAID, "comment": "By phone."}
        with pytest.raises(NotAllowed, match="Its operators"):
            await people("dana").answer(invocation, "replace", "fc-1", **fields)
        await people("olga", roles=["waystation-operator"]).answer(invocation, "replace", "fc-1", **fields)
        assert (await invocation.result()).text == "Done."


async def post(url: str, body: Any, *, host: str | None = None, **headers: str) -> httpx.Response:
    """Send JSON to a completion URL."""
    async with httpx.AsyncClient(timeout=30) as http:
        return await http.post(url, content=json.dumps(body), headers={"Content-Type": "application/json", **headers})


async def test_a_machine_completes_a_call_over_http(serve: Serve, people: People) -> None:
    """Progress comes before the final answer. A repetition returns the first receipt; other content is a conflict."""
    claims = Claims()
    async with (
        serve(assessor(claims.assess), identity=people.identity) as env,
        site(env.client, gatekeeper=gatekeeper(people)) as web,
    ):
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        url = f"{web.url}/completions/{claims.token()}"
        for _ in range(2):
            told = await post(url, {"response": {"step": 1}, "final": False})
            assert told.json() == {"accepted": True, "function_call_id": "fc-1", "tool": "assess", "action": "progress"}
        first, again = [await post(url, {"response": PAID}) for _ in range(2)]
        assert first.json() == again.json() == {**first.json(), "action": "respond", "accepted": True}
        assert (await post(url, {"response": {"status": "lost"}})).status_code == 409
        await invocation.result()
        assert (await post(url, {"response": PAID})).json() == first.json()
        log = await invocation.log()
    assert sum(len(event.function_responses()) for event in log.state.events) == 3  # interim, progress, final


async def test_a_stranger_learns_nothing_at_a_completion_url(serve: Serve, people: People) -> None:
    """Forged, expired, foreign and damaged tokens look alike, with or without a call. No cookie or login helps."""
    claims = Claims()
    async with (
        serve(assessor(claims.assess), identity=people.identity) as env,
        site(env.client, gatekeeper=gatekeeper(people)) as web,
    ):
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        (call,) = await invocation.pending()
        place, keys = CompletionGrant.of(call, "default"), people.identity.completions
        assert keys is not None
        foreign = People().identity.completions
        assert foreign is not None
        expired = CompletionGrant(**{**vars(place), "until": 1})
        elsewhere = CompletionGrant(**{**vars(place), "namespace": "other"})
        urls = [keys.make_url(expired), keys.make_url(elsewhere), foreign.make_url(place), claims.urls[0] + "x", "/x"]
        found = [await post(f"{web.url}/completions/{url.rpartition('/')[2]}", {"response": PAID}) for url in urls]
        assert {(each.status_code, each.text) for each in found} == {(404, found[0].text)}
        url = f"{web.url}/completions/{claims.token()}"
        assert (await post(url, {"response": PAID, "by": "dana"})).status_code == 422
        assert (await post(url, {"response": "text"})).status_code == 422
        assert (await post(url, {"response": PAID}, Origin="https://mallory.example")).status_code == 403
        large = {"response": {"text": "x" * 4_000_000}}
        assert (await post(url, large)).status_code == 413
        assert [pending.interim for pending in await invocation.pending()] == [call.interim]


async def test_a_revoked_url_ends_and_a_new_one_counts(serve: Serve, people: People) -> None:
    """The revocation is recorded with its operator. It concerns the URLs that exist, not the machine."""
    claims, olga = Claims(), people("olga", roles=["waystation-operator"])
    async with (
        serve(assessor(claims.assess), identity=people.identity) as env,
        site(env.client, gatekeeper=gatekeeper(people)) as web,
    ):
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        # The ID does not use up that of the machine's answer.
        await olga.answer(invocation, "revoke", "fc-1", comment="Leaked.", answer_id="completion")
        refused = await post(f"{web.url}/completions/{claims.token()}", {"response": PAID})
        assert refused.status_code == 403
        assert "revoked" in refused.text
        (call,) = await invocation.pending()
        keys = people.identity.completions
        assert keys is not None
        token = keys.make_url(CompletionGrant.of(call, "default")).rpartition("/")[2]
        assert (await post(f"{web.url}/completions/{token}", {"response": PAID})).status_code == 200
        await invocation.result()
        metadata = [event.custom_metadata or {} for event in (await invocation.log()).state.events]
    assert [fields["approval"]["action"] for fields in metadata if "approval" in fields] == ["revoke", "respond"]
    assert sum("ignored_answer" in fields for fields in metadata) == 1


async def test_an_unverified_machine_cannot_pose_as_one_of_two_people(serve: Serve, people: People) -> None:
    """The name of a machine counts in no quorum."""
    policy = ApprovalPolicy(quorum=2, verified=False)
    async with serve(assessor(answered_by=None, approval=policy)) as env:
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        with pytest.raises(NotAllowed, match="is a machine"):
            await invocation.approve("fc-1", by="machine:claims")
        for name in ("dana", "sam"):
            await invocation.approve("fc-1", by=name)
        await invocation.result()


async def test_no_progress_uses_up_the_final_answer(serve: Serve, people: People) -> None:
    """A machine chooses the ID of its progress, and may choose any."""
    claims = Claims()
    async with (
        serve(assessor(claims.assess), identity=people.identity) as env,
        site(env.client, gatekeeper=gatekeeper(people)) as web,
    ):
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        url = f"{web.url}/completions/{claims.token()}"
        for id in ("completion", "0"):
            told = await post(url, {"response": {"step": id}, "final": False, "answer_id": id})
            assert told.status_code == 200
        assert (await post(url, {"response": PAID})).status_code == 200
        await invocation.result()


async def test_a_machine_that_repeats_its_url_does_not_publish_it(serve: Serve, people: People) -> None:
    """Systems often send a callback back in what they report, and everybody may read a history."""
    claims = Claims()
    async with (
        serve(assessor(claims.assess), identity=people.identity) as env,
        site(env.client, gatekeeper=gatekeeper(people)) as web,
    ):
        invocation = await start_and_wait(env.client.start("assessor", "go"))
        url = f"{web.url}/completions/{claims.token()}"
        for final in (False, True):
            sent = {"response": {"callback": url, claims.token(): 1}, "final": final}
            assert (await post(url, sent)).status_code == 200
        await invocation.result()
        log, history = await invocation.log(), (await invocation.handle.fetch_history()).to_json()
    responses = [part["response"] for event in log.state.events for part in event.function_responses()]
    assert claims.token() not in json.dumps([history, responses])
