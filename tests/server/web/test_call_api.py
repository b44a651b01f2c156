"""The JSON API for pending calls: the same rules as the pages, for people with a cookie and programs with the token."""

import json
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import pytest

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.web.desk import begun, payer
from tests.server.web.logins import DANA, ERIN, gatekeeper, person
from tests.server.web.sites import Browser, site
from tests.steps import wait_until
from tests.unit.identity.conftest import Installation
from waystation.approvers.audit import gather_invocation
from waystation.core.approval import ApprovalPolicy

CALLS = "/api/v1/calls"


def path_to(id: str, *more: str) -> str:
    """Return the path of a call in the API."""
    return "/".join((CALLS, quote(id, safe=""), *more))


async def post(http: httpx.AsyncClient, path: str, body: Any, **headers: str) -> httpx.Response:
    """Send JSON as a script on a page of the server does."""
    sent = {"Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}
    return await http.post(path, content=json.dumps(body), headers={**sent, **headers})


def name_of(response: httpx.Response) -> str:
    """Return the name of the error in a problem document."""
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["type"]).removeprefix("urn:waystation:error:")


async def test_a_program_lists_reads_and_answers_a_call(serve: Serve) -> None:
    """On this machine, the token may answer; a repeated request with the same key has the same response."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web, web.program() as program:
        invocation, id = await begun(env.client, "payer")

        async def listed() -> bool:
            found = (await program.get(CALLS, params={"tool": "pay", "show": "mine", "agent": "payer"})).json()
            return id in [call["id"] for call in found["calls"]]  # other tests may leave calls behind

        await wait_until(listed, "the call")
        read = (await program.get(path_to(id))).json()
        assert (read["args"], read["status"], read["answer"]) == ({"amount": 5}, "open", None)
        assert {"approve", "reject", "edit", "claim"} <= set(read["allowed"]) <= set(read["actions"])
        answer = {"action": "approve", "digest": read["digest"], "comment": "fine"}
        sent = [await post(program, path_to(id, "answers"), answer, **{"Idempotency-Key": "k-1"}) for _ in range(2)]
        assert [response.status_code for response in sent] == [200, 200]
        assert sent[0].json() == sent[1].json()
        assert (sent[0].json()["outcome"], sent[0].json()["decided"]) == ("accepted", True)
        await invocation.result()
        assert till.paid == [5]
        late = await post(program, path_to(id, "answers"), {"action": "reject"})
        assert (late.status_code, name_of(late), late.json()["answer"]["by"]) == (409, "AlreadyAnswered", "dana")
        closed = (await program.get(path_to(id))).json()
        assert (closed["status"], closed["actions"], closed["answer"]["comment"]) == ("decided", [], "fine")


async def test_the_outcomes_of_several_answers_are_typed(serve: Serve) -> None:
    """An answer that counts, one for other arguments, one for an answered call and one for an unknown call."""
    till = Till()
    async with (
        serve(payer(till, {"amount": 1}, {"amount": 2}, {"amount": 3}), verify=False) as env,
        site(env.client) as web,
        web.program() as program,
    ):
        invocation, first = await begun(env.client, "payer")
        ids = [first, *(first.removesuffix("1") + number for number in "23")]
        await invocation.reject("fc-3", by="erin")
        calls = [{"id": ids[0]}, {"id": ids[1], "digest": "0" * 32}, {"id": ids[2]}, {"id": "unknown/fc-1"}]
        twice = await post(program, f"{CALLS}/answers", {"action": "approve", "calls": [*calls, {"id": ids[0]}]})
        assert (twice.status_code, name_of(twice)) == (422, "InvalidInput")
        sent = await post(program, f"{CALLS}/answers", {"action": "approve", "calls": calls})
        outcomes = sent.json()["outcomes"]
        assert [each["outcome"] for each in outcomes] == ["accepted", "refused", "already_answered", "refused"]
        assert [each["id"] for each in outcomes] == [call["id"] for call in calls]
        names = [each["problem"]["type"].rpartition(":")[2] for each in outcomes[1:]]
        assert names == ["DigestMismatch", "AlreadyAnswered", "UnknownCall"]
        assert (outcomes[2]["answer"]["by"], outcomes[2]["answer"]["action"]) == ("erin", "reject")
        await invocation.reject("fc-2")
        await invocation.result()
        assert till.paid == [1]


async def test_the_token_never_satisfies_a_policy_that_requires_verified_identities(
    serve: Serve, there: Installation
) -> None:
    """The gateway signs answers of browsers without a provider, but not those of the token, which several may know."""
    keeper = gatekeeper(there)
    local = type(keeper)(interface="web", gateway=keeper.gateway, sealer=keeper.sealer)
    policy = ApprovalPolicy(approvers=("dana",))
    async with (
        serve(payer(Till(), {"amount": 5}, approval=policy), identity=there.worker, verify=False) as env,
        site(env.client, gatekeeper=local) as web,
        web.program() as program,
        web.browser() as browser,
    ):
        invocation, id = await begun(env.client, "payer", user_id=ERIN)
        assert (await program.get(path_to(id))).json()["allowed"] == []
        refused = await post(program, path_to(id, "answers"), {"action": "approve"})
        assert (refused.status_code, name_of(refused)) == (403, "NotAllowed")
        assert (await post(browser.http, path_to(id, "answers"), {"action": "approve"})).status_code == 200
        await invocation.result()


async def test_on_a_server_for_several_people_the_token_answers_nothing(serve: Serve) -> None:
    """This also applies if a policy names the token's name."""
    policy = ApprovalPolicy(approvers=("program",), verified=False)
    async with (
        serve(payer(Till(), {"amount": 5}, approval=policy), verify=False) as env,
        site(env.client, url="https://web.example", names=["web.example"]) as web,
        web.program() as program,
    ):
        invocation, id = await begun(env.client, "payer")
        refused = await post(program, path_to(id, "answers"), {"action": "approve"})
        assert (refused.status_code, name_of(refused)) == (403, "NotAllowed")
        several = await post(program, f"{CALLS}/answers", {"action": "approve", "calls": [{"id": id}]})
        assert several.json()["outcomes"][0]["outcome"] == "refused"
        await invocation.handle.terminate()


async def test_an_approver_answers_with_a_verified_identity_and_the_digest_that_the_policy_demands(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """The answer is signed as the page's is, two people have to approve, and strangers do not learn that it exists."""
    till, policy = Till(), ApprovalPolicy(approvers=("role:finance",), quorum=2, digest=True)
    async with (
        serve(payer(till, {"amount": 5}, approval=policy), identity=there.worker) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "finance") as dana,
        person(web.url, openid, "finance", subject="fay@example.com") as fay,
        person(web.url, openid, "authors", subject="olga@example.com") as other,
    ):
        invocation, id = await begun(env.client, "payer", user_id=ERIN)
        unknown = await other.http.get(path_to(id))
        assert (unknown.status_code, name_of(unknown)) == (404, "UnknownCall")
        blind = await post(other.http, f"{CALLS}/answers", {"action": "approve", "calls": [{"id": id}]})
        assert blind.json()["outcomes"][0]["problem"]["status"] == 404
        missing = await post(dana.http, path_to(id, "answers"), {"action": "approve"})
        assert (missing.status_code, name_of(missing)) == (409, "DigestMismatch")
        answer = {"action": "approve", "digest": (await dana.http.get(path_to(id))).json()["digest"]}
        first = (await post(dana.http, path_to(id, "answers"), answer)).json()
        assert (first["decided"], first["approved_by"], first["lacking"]) == (False, [DANA], 1)
        second = (await post(fay.http, path_to(id, "answers"), answer)).json()
        assert second["decided"] is True
        await invocation.result()
        read = (await fay.http.get(path_to(id))).json()
        assert (read["answer"]["by"], read["answer"]["verified"]) == ("fay@example.com", True)
        assert till.paid == [5]
        audit = (await gather_invocation(env.client, invocation.id)).by_invocation[invocation.id]
        (decided,) = [line for line in audit if line["kind"] == "decided"]
        assert (decided["interface"], decided["verified"]["subject"]) == ("api", "fay@example.com")


@pytest.mark.parametrize(
    ("headers", "status", "name"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403, "ForeignForm"),
        ({"Origin": "https://evil.example"}, 403, "ForeignForm"),
        ({"Content-Type": "text/plain"}, 415, "InvalidRequest"),
        ({"Idempotency-Key": "x" * 201}, 400, "InvalidRequest"),
    ],
)
async def test_a_request_with_a_cookie_has_to_come_from_this_server(
    serve: Serve, headers: dict[str, str], status: int, name: str
) -> None:
    """Nothing is answered otherwise, and errors are problem documents."""
    async with serve(payer(Till(), {"amount": 5}), verify=False) as env, site(env.client) as web, web.browser() as me:
        invocation, id = await begun(env.client, "payer")
        refused = await post(me.http, path_to(id, "answers"), {"action": "approve"}, **headers)
        assert (refused.status_code, name_of(refused)) == (status, name)
        plain = await me.http.post(path_to(id, "answers"), json={"action": "approve"})
        assert (plain.status_code, name_of(plain)) == (403, "ForeignForm")
        bodies: list[Any] = [{"action": "approve", "by": "erin"}, {"action": "fly"}, []]
        for body in bodies:
            invalid = await post(me.http, path_to(id, "answers"), body)
            assert (invalid.status_code, name_of(invalid)) == (422, "InvalidInput")
        for query in ("show=yours", "tol=pay", "page=0"):
            wrong = await me.http.get(f"{CALLS}?{query}")
            assert (wrong.status_code, name_of(wrong)) == (400, "InvalidRequest")
        assert "Use one of: mine, free," in (await me.http.get(f"{CALLS}?show=yours")).text
        await invocation.handle.terminate()


async def _events(me: Browser | httpx.AsyncClient, count: int, **headers: str) -> list[dict[str, Any]]:
    http = me.http if isinstance(me, Browser) else me
    found: list[dict[str, Any]] = []
    async with http.stream("GET", f"{CALLS}/events", headers=headers) as response:
        event: dict[str, Any] = {}
        async for line in response.aiter_lines():
            key, _, value = line.partition(": ")
            event |= {key: value} if key in ("event", "id", "data") else {}
            if not line and "data" in event:
                found.append({**json.loads(event["data"]), "event": event["event"]})
                event = {}
            if len(found) == count:
                break
    return found


async def test_a_stream_begins_with_a_snapshot_and_names_the_calls_that_have_gone(serve: Serve) -> None:
    """After a reconnection, too."""
    agent = payer(Till(), {"amount": 1}, {"amount": 2})
    async with serve(agent, verify=False) as env, site(env.client) as web, web.program() as program:
        invocation, id = await begun(env.client, "payer")
        second = id.removesuffix("1") + "2"

        async def listed() -> bool:
            return {call["id"] for call in (await program.get(CALLS)).json()["calls"]} >= {id, second}

        await wait_until(listed, "the calls")
        (snapshot,) = await _events(program, 1)
        assert snapshot["event"] == "snapshot"
        assert {id, second} <= {call["id"] for call in snapshot["calls"]}
        await post(program, path_to(id, "answers"), {"action": "reject"})
        (again,) = await _events(program, 1)
        assert (again["event"], again["gone"], again["complete"]) == ("snapshot", [], True)
        assert {call["id"] for call in again["calls"]} & {id, second} == {second}
        await invocation.handle.terminate()
