"""Signed webhooks start and continue agents, and strangers learn nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from structlog.typing import EventDict

from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import payer
from tests.server.web.sites import site
from tests.steps import wait_for_calls
from tests.unit.web.test_triggers import NEW, OLD, configured, standard_headers
from waystation.agents import Agent
from waystation.core.approval import ApprovalPolicy
from waystation.core.contract import text_of
from waystation.core.errors import MessageUnconfirmed, NotAllowed
from waystation.testing import People, ScriptedModel, says
from waystation.web.limits import Limits
from waystation.web.starter import Starter
from waystation.web.triggers import Trigger


def configured_for(trigger: Trigger, agent: str, **keys: Any) -> Trigger:
    """Return the trigger for another agent."""
    return replace(trigger, section=trigger.section.model_copy(update={"agent": agent, **keys}))


@pytest.fixture(scope="module")
def people() -> People:
    """Return people, and the gateway that signs for them and for triggers."""
    return People()


async def deliver(url: str, name: str, payload: Any, secret: str = NEW, **signed: Any) -> httpx.Response:
    """Deliver a webhook."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    headers = {"Content-Type": "application/json", **standard_headers(secret, body, **signed)}
    async with httpx.AsyncClient(timeout=30) as http:
        return await http.post(f"{url}/hooks/{name}", content=body, headers=headers)


async def test_a_trigger_starts_an_agent_once_for_a_configured_user(
    serve: Serve, people: People, tmp_path: Path
) -> None:
    """The requester is a machine, so a person may approve under `not_requester`; the user and the tenant are fixed."""
    till, policy = Till(), ApprovalPolicy(not_requester=True)
    trigger = configured(tmp_path, "shop", message="{{.}}", user_id="ann", tenant="acme", app="shop")
    payload = {"order": "[7](https://mallory.example)", "tenant": "other", "user_id": "bob", "app": "other"}
    async with (
        serve(payer(till, {"amount": 5}, approval=policy), identity=people.identity) as env,
        site(env.client, gatekeeper=people._gatekeeper, triggers={"shop": configured_for(trigger, "payer")}) as web,
    ):
        first = await deliver(web.url, "shop", payload, OLD)
        assert (first.status_code, first.json()["duplicate"]) == (202, False)
        again = await deliver(web.url, "shop", {"order": 8})
        assert (again.status_code, again.json()) == (202, {**first.json(), "duplicate": True})
        invocation = env.client.invocation(first.json()["invocation_id"])
        await wait_for_calls(invocation, "fc-1")
        started = (await invocation.log()).state.input
        assert started is not None
        assert (started.message, started.metadata["trigger"]) == (json.dumps(payload, separators=(",", ":")), "shop")
        assert (started.requester, started.user_id, started.app, started.tenant) == (
            "machine:hook:shop",
            "ann",
            "shop",
            "acme",
        )
        with pytest.raises(NotAllowed):  # the user is barred as a requester, too
            await people("ann").answer(invocation, "approve", "fc-1")
        await people("dana").answer(invocation, "approve", "fc-1")
        await invocation.result()
        assert (await deliver(web.url, "shop", payload)).json() == {**first.json(), "duplicate": True}
        log = await invocation.log()
        assert log.state.signed_request is not None
        assert log.state.signed_request.subjects == ("machine:hook:shop",)
    assert till.paid == [5]


async def test_a_trigger_continues_the_session_of_its_key(serve: Serve, people: People, tmp_path: Path) -> None:
    """Deliveries with the same key belong to one session, and a repeated one returns the first one's invocation."""
    talker = Agent(name="talker", model=ScriptedModel(says("One."), says("Two."), says("Other.")))
    trigger = configured(tmp_path, "desk", session="{{issue.number}}", user_id="ann-of-triggers")
    async with (
        serve(talker, identity=people.identity) as env,
        site(env.client, gatekeeper=people._gatekeeper, triggers={"desk": configured_for(trigger, "talker")}) as web,
    ):
        ids: list[str] = []
        for id, number in (("m-1", 7), ("m-2", 7), ("m-1", 7), ("m-3", 8)):
            payload = {"issue": {"number": number, "title": id}}
            sent = await deliver(web.url, "desk", payload, id=id)
            assert (sent.status_code, sent.json()["duplicate"]) == (202, len(ids) == 2)
            ids.append(sent.json()["invocation_id"])
            await env.client.invocation(ids[-1]).result()
        assert ids[0] == ids[2]
        assert len(set(ids)) == 3
        session = env.client.session(agent="talker", session_id="hook:desk:7", user_id="ann-of-triggers")
        events = await session.events()
        assert [text_of(event.content) for event in events] == ['"m-1"', "One.", '"m-2"', "Two."]
        assert {log.state.requesters for log in await session.logs()} == {("machine:hook:desk", "ann-of-triggers")}
        assert len(await session.invocations()) == 2


async def test_a_stranger_learns_nothing_at_a_trigger(
    serve: Serve, people: People, tmp_path: Path, logs: list[EventDict]
) -> None:
    """Forged, old and malformed deliveries look as if there were no such trigger, and start nothing."""
    stranger = Agent(name="stranger", model=ScriptedModel())
    crm = configured_for(configured(tmp_path, "crm"), "stranger")
    other = configured_for(configured(tmp_path, "other", secret_file="old"), "stranger")
    triggers, body = {"crm": crm, "other": other}, {"issue": {"title": "Broken"}}
    async with (
        serve(stranger) as env,
        site(env.client, gatekeeper=people._gatekeeper, triggers=triggers, limits=Limits(trigger_bytes=1_000)) as web,
    ):
        found = [
            await deliver(web.url, "missing", body),
            await deliver(web.url, "crm", body, "another secret of anybody"),
            await deliver(web.url, "other", body, NEW),
            await deliver(web.url, "crm", body, ago_s=400),
            await deliver(web.url, "crm", b"no JSON", "another secret of anybody"),
            await deliver(web.url, "missing", b"no JSON"),
        ]
        assert {(each.status_code, each.text) for each in found} == {(401, found[0].text)}
        names = [entry["trigger"] for entry in logs if entry["event"] == "trigger.refused"]
        assert names == [None, "crm", "other", "crm", "crm", None]
        large = [await deliver(web.url, name, {"text": "x" * 1_000}, "another one") for name in ("crm", "missing")]
        assert [each.status_code for each in large] == [413, 413]
        assert (await deliver(web.url, "crm", b"[]")).status_code == 422
        async with web.program() as http:
            assert (await http.post("/hooks/crm", json=body)).status_code == 401  # the token is not a signature
        assert [entry async for entry in env.client.invocations.list(agent="stranger")] == []


async def test_deliveries_are_limited_for_each_trigger(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forged deliveries do not count, so strangers cannot use up the limit. An unconfirmed one is to be repeated."""

    async def time_out(self: Starter, *_: Any, **options: Any) -> None:
        raise MessageUnconfirmed("desk")

    monkeypatch.setattr(Starter, "send", time_out)
    keys = {"session": "{{issue.number}}", "per_minute": 2}
    trigger = configured_for(configured(tmp_path, "desk"), "talker", **keys)
    payload = {"issue": {"number": 7, "title": "Broken"}}
    async with (
        serve(Agent(name="talker", model=ScriptedModel())) as env,
        site(env.client, triggers={"desk": trigger}) as web,
    ):
        forged = [await deliver(web.url, "desk", payload, "another secret of anybody") for _ in range(3)]
        signed = [await deliver(web.url, "desk", payload) for _ in range(3)]
    assert [each.status_code for each in forged + signed] == [401, 401, 401, 503, 503, 429]
    assert all(int(each.headers["Retry-After"]) > 0 for each in signed)
