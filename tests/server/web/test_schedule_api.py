"""The JSON API for schedules and budgets."""

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.identity.test_deciding import client_of
from tests.server.identity.test_requests import OTHERS, payer
from tests.server.web.logins import DANA, ERIN, gatekeeper, person
from tests.server.web.sites import site
from tests.server.web.test_call_api import name_of, post
from tests.steps import wait_for_calls, wait_until
from tests.unit.identity.conftest import Installation
from waystation.core.approval import ApprovalPolicy
from waystation.core.budget import Amounts
from waystation.core.errors import NotAllowed
from waystation.storage import QuotaStore
from waystation.storage.quota_store import MeteredCall, Reservation

SCHEDULES = "/api/v1/schedules"
BODY = {"agent": "payer", "message": "pay", "cron": "0 9 * * 1-5", "time_zone": "Europe/Berlin"}


async def test_a_program_creates_pauses_triggers_and_deletes_a_schedule(serve: Serve) -> None:
    """The same key creates it once. Its invocations belong to the person behind the program."""
    agent = payer(Till(), ApprovalPolicy())
    async with serve(agent, verify=False) as env, site(env.client) as web, web.program() as program:
        created = [await post(program, SCHEDULES, BODY, **{"Idempotency-Key": "k"}) for _ in range(2)]
        assert [(each.status_code, each.json()["existed"]) for each in created] == [(201, False), (200, True)]
        id = created[0].json()["schedule_id"]
        path = f"{SCHEDULES}/{quote(id, safe='')}"
        assert (await post(program, f"{path}/pause", {"note": "holidays"})).status_code == 200
        read = (await program.get(path)).json()
        assert (read["cron"], read["paused"], read["note"]) == ("0 9 * * 1-5", True, "holidays")
        assert (read["user_id"], read["requester"], read["signed"]) == ("dana", "dana", False)
        assert (await post(program, f"{path}/unpause", {})).status_code == 200
        assert (await post(program, f"{path}/trigger", {})).status_code == 200
        [invocation] = await env.scheduled(env.client.temporal.get_schedule_handle(id))
        await wait_for_calls(invocation, "fc-1")
        await invocation.handle.terminate()

        async def listed() -> bool:
            found = (await program.get(SCHEDULES)).json()["schedules"]
            return id in {each["id"] for each in found}

        await wait_until(listed, "the schedule")
        assert (await program.get(path)).json()["started"] == [invocation.id]
        assert (await post(program, f"{path}/delete", {})).status_code == 200
        gone = await program.get(path)
        assert (gone.status_code, name_of(gone)) == (404, "UnknownSchedule")


@pytest.mark.parametrize("changes", [{"cron": "every day"}, {"cron": None}, {"every_s": 60}, {"time_zone": "Nowhere"}])
async def test_a_schedule_with_wrong_times_is_refused(serve: Serve, changes: dict[str, object]) -> None:
    """The response says what to correct."""
    async with serve(payer(Till())) as env, site(env.client) as web, web.program() as program:
        refused = await post(program, SCHEDULES, BODY | changes)
        assert refused.status_code == 422, refused.text


async def test_the_creator_of_a_schedule_is_the_verified_requester(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """Dana may not approve what her schedule starts, but Erin may. Others neither see nor trigger it."""
    till = Till()
    async with (
        serve(payer(till, OTHERS), identity=there.worker, verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "authors") as dana,
        person(web.url, openid, "authors", "viewers", "operators", subject=ERIN) as erin,
        person(web.url, openid, "authors", subject="eve@example.com") as eve,
    ):
        id = (await post(dana.http, SCHEDULES, BODY)).json()["schedule_id"]
        path = f"{SCHEDULES}/{quote(id, safe='')}"
        shown = (await dana.http.get(path)).json()
        assert (shown["requester"], shown["signed"]) == (DANA, True)
        hidden, unknown = await eve.http.get(path), await eve.http.get(f"{SCHEDULES}/nothing")
        assert (hidden.status_code, hidden.text.replace(id, "nothing")) == (404, unknown.text)
        refused = await post(erin.http, f"{path}/trigger", {})
        assert (refused.status_code, name_of(refused)) == (403, "NotAllowed")
        assert (await post(dana.http, f"{path}/trigger", {})).status_code == 200
        [invocation] = await env.scheduled(env.client.temporal.get_schedule_handle(id))
        await wait_for_calls(invocation, "fc-1")
        [call] = await invocation.pending()
        assert call.verified_requesters == (DANA,)
        answering = client_of(env, there).invocation(invocation.id)
        with pytest.raises(NotAllowed, match="someone else must answer"):
            await answering.approve("fc-1", token=there.provider.token(DANA))
        await answering.approve("fc-1", token=there.provider.token(ERIN))
        await invocation.result()
        assert (await post(erin.http, f"{path}/delete", {})).status_code == 200
    assert till.paid == [5]


async def test_people_read_their_own_usage(
    serve: Serve, there: Installation, openid: FakeOpenId, tmp_path: Path
) -> None:
    """A viewer reads that of all; without a quota file, there is nothing to read."""
    store = QuotaStore(tmp_path / "quotas.db")
    for user in (DANA, ERIN):
        call = MeteredCall(id=user, sender="s", tenant="", user=user, counts=True)
        reserved = await store.reserve(call)
        assert isinstance(reserved, Reservation)
        await store.settle(reserved, Amounts(1, 10, 0.5))
    async with (
        serve(payer(Till())) as env,
        site(env.client, gatekeeper=gatekeeper(there), usage=store) as web,
        person(web.url, openid) as dana,
        person(web.url, openid, "viewers", subject=ERIN) as erin,
        site(env.client) as bare,
        bare.program() as program,
    ):
        own = (await dana.http.get("/api/v1/budgets")).json()["usage"]
        everything = (await erin.http.get("/api/v1/budgets")).json()["usage"]
        nothing = await program.get("/api/v1/budgets")
    assert {(row["user"], row["tokens"]) for row in own} == {(DANA, 10)}
    assert {row["user"] for row in everything} == {None, DANA, ERIN}
    assert (nothing.status_code, name_of(nothing)) == (404, "NoQuotas")
