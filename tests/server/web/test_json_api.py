"""The JSON API: permissions of authors and operators, and the user in whose name they act."""

import json
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import pytest

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.web.desk import payer
from tests.server.web.logins import DANA, ERIN, gatekeeper, person
from tests.server.web.sites import TOKEN, Browser, site
from tests.steps import approve_and_finish, reject_and_finish, start_and_wait, wait_for_calls, wait_until
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.approvers.audit import gather_invocation
from waystation.client import agent_directory
from waystation.history import EventType
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.web.limits import Limits

START = {"agent": "payer", "message": "Please pay what I owe."}


async def post(me: Browser, path: str, body: Any, **headers: str) -> httpx.Response:
    """Send JSON with the token of the login, as a script on a page does."""
    token = {"X-CSRF-Token": (await me.fields("/approvals"))["csrf"]}
    content = body if isinstance(body, bytes) else json.dumps(body)
    return await me.http.post(
        f"/api/{path}",
        content=content,
        headers={"Content-Type": "application/json", "Accept": "*/*", **token, **headers},
    )


async def get(me: Browser, path: str) -> httpx.Response:
    """Read JSON."""
    return await me.http.get(f"/api/{path}", headers={"Accept": "*/*"})


def problem(response: httpx.Response) -> str:
    """Return the message of an error."""
    return str(response.json()["error"]["message"])


def talker() -> Agent:
    """Return an agent that answers two messages."""
    return Agent(name="talker", model=ScriptedModel(says("Hello."), says("Hello again.")))


async def test_an_author_starts_an_invocation_in_their_own_name(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """The person of the login is recorded, and can read what they started without the role `viewer`."""
    async with (
        serve(payer(Till(), {"amount": 5}), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "authors") as author,
        person(web.url, openid, "authors", subject=ERIN) as other,
    ):
        started = await post(author, "invocations", {**START, "message_id": "m-1"})
        id = started.json()["invocation_id"]
        assert (started.status_code, started.json()["existed"]) == (201, False)
        invocation = env.client.invocation(id)
        await wait_for_calls(invocation, "fc-1")
        started_input = (await invocation.log()).state.input
        assert started_input is not None
        assert (started_input.user_id, started_input.requester) == (DANA, DANA)
        events = f"/invocations/{id}/events.json"
        assert ((await author.page(events)).status_code, (await other.page(events)).status_code) == (200, 404)
        repeated = await post(author, "invocations", {**START, "message_id": "m-1"})
        assert (repeated.status_code, repeated.json()) == (200, {"invocation_id": id, "existed": True})
        another = await post(other, "invocations", {**START, "message_id": "m-1"})
        assert (another.status_code, another.json()["invocation_id"] == id) == (201, False)
        await invocation.handle.terminate()
        await env.client.invocation(another.json()["invocation_id"]).result()  # its model has no further reply


async def test_a_request_cannot_name_who_starts_it(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """Only the login decides, for invocations, messages and forks; nothing that a parent may set is accepted."""
    async with (
        serve(talker(), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "viewers", "authors", "operators") as me,
    ):
        source = await env.client.start("talker", "hi")
        await source.result()
        fields = ("user_id", "requester", "session_id", "standing", "session", "fork", "token")
        for path, body in (
            ("invocations", {"agent": "talker", "message": "hi"}),
            ("sessions/s-1/messages", {"agent": "talker", "message": "hi"}),
            (f"invocations/{source.id}/forks", {"event": 1}),
        ):
            refused = await post(me, path, {**body, **dict.fromkeys(fields[:4], ERIN)})
            more = await post(me, path, {**body, **dict.fromkeys(fields[4:], ERIN)})
            assert (path, refused.status_code, more.status_code) == (path, 422, 422)
            for field in fields:
                assert f"{field}: Extra inputs are not permitted" in problem(refused) + problem(more)


NAMES = ("session/default/erin/s/1", "other~1", "other/fc-1", "", "x" * 201, "a b", "1a", "a\n")


async def test_an_author_cannot_choose_an_id(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """Other people's invocations, sessions and forks would otherwise find their IDs taken."""
    async with (
        serve(talker()) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "authors") as author,
    ):
        refused = await post(author, "invocations", {"agent": "talker", "message": "hi", "id": "order-42"})
        assert (refused.status_code, "id: Extra inputs" in problem(refused)) == (422, True)
        for name in NAMES:
            hidden = await post(author, "invocations", {"agent": name, "message": "hi"})
            assert (name, hidden.status_code, "agent: String should" in problem(hidden)) == (name, 422, True)


async def test_an_author_cancels_only_what_they_started(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """A viewer who is an author may cancel everything that they see."""
    agents = payer(Till(), {"amount": 5}), payer(Till(), {"amount": 5})
    agents[1].name = "second"
    async with (
        serve(*agents, verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "authors") as author,
        person(web.url, openid, "authors", subject=ERIN) as other,
        person(web.url, openid, "authors", "viewers", subject="vera@example.com") as chief,
    ):
        bodies = ({**START, "agent": agent.name} for agent in agents)
        ids = [(await post(author, "invocations", body)).json()["invocation_id"] for body in bodies]
        assert (await post(other, f"invocations/{ids[0]}/cancel", {})).status_code == 404
        for me, id in ((author, ids[0]), (chief, ids[1])):
            await wait_for_calls(env.client.invocation(id), "fc-1")
            assert (await post(me, f"invocations/{id}/cancel", b"")).status_code == 202

            async def ended(id: str = id) -> bool:
                return (await env.client.invocation(id).log()).state.outcome.ended == "cancelled"

            await wait_until(ended, "the end")
            late = await post(me, f"invocations/{id}/cancel", {})
            assert (late.status_code, problem(late)) == (409, f"{id!r} has already ended.")


FORGED: list[tuple[dict[str, str], int]] = [
    ({"X-CSRF-Token": ""}, 403),
    ({"X-CSRF-Token": "x" * 43}, 403),
    ({"Origin": "https://evil.example"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Content-Type": "text/plain"}, 415),
    ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
]
"""Headers, and the status with which a request is refused."""
UNUSABLE: list[tuple[bytes, int, str]] = [
    (b"", 422, "agent: Field required"),
    (b"[]", 422, "should be a valid dictionary"),
    (b"{", 422, "is not JSON"),
    (b'{"agent": "payer", "message": "a", "message": "b"}', 422, "contains the key 'message' twice"),
    (b'{"agent": "payer", "message": 5}', 422, "message."),
    (b'{"agent": "payer", "message": "a", "budget": {"max_llm_calls": "x"}}', 422, "budget.max_llm_calls"),
    (b'{"agent": "payer", "message": "\\ud800"}', 422, "is not JSON"),
    (b'{"agent": "payer", "message": NaN}', 422, "is not JSON"),
    (b'{"agent": "payer", "message": ' + b'{"a":' * 300 + b"1" + b"}" * 301, 422, "The request"),
    (b'{"agent": "payer", "message": "' + b"x" * 5_000 + b'"}', 413, "the limit is 5,000 bytes"),
]
"""Bodies, and the status and the reason with which they are refused."""


async def test_a_forged_or_unusable_request_starts_nothing(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """Other sites cannot send requests in a person's name, and errors name the field."""
    async with (
        serve(payer(Till(), {"amount": 5})) as env,
        site(env.client, gatekeeper=gatekeeper(there), limits=Limits(body_bytes=5_000)) as web,
        person(web.url, openid, "authors", subject=f"author-{env.client.task_queue}") as author,
    ):
        for headers, status in FORGED:
            refused = await post(author, "invocations", START, **headers)
            assert (headers, refused.status_code) == (headers, status)
        for body, status, text in UNUSABLE:
            refused = await post(author, "invocations", body)
            assert (body[:80], refused.status_code) == (body[:80], status)
            assert text in problem(refused)
        program = await author.http.post("/api/invocations", json=START, headers={"Authorization": f"Bearer {TOKEN}"})
        assert program.status_code == 403
        assert "payer-" not in (await author.page("/invocations")).text


async def test_people_chat_in_sessions_of_their_own(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """Two people may use the same session ID; neither reads the other's conversation, but a viewer may."""
    async with (
        serve(talker(), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "authors") as dana,
        person(web.url, openid, "authors", subject=ERIN) as erin,
        person(web.url, openid, "viewers", subject="vera@example.com") as viewer,
    ):
        message = {"agent": "talker", "message": "I am dana.", "message_id": "m-1"}
        sent = await post(dana, "sessions/chat/messages", message)
        assert (sent.status_code, sent.json()["status"], sent.json()["duplicate"]) == (201, "started", False)
        assert (await post(dana, "sessions/chat/messages", message)).json()["duplicate"] is True
        session = env.client.session(agent="talker", session_id="chat", user_id=DANA)
        await session.invocation(1).result()
        assert sent.json()["invocation_id"] == session.invocation(1).id
        assert (await get(erin, "sessions/chat/events")).status_code == 404
        assert (await get(erin, f"sessions/chat/events?user_id={DANA}")).status_code == 404
        for me, query in ((dana, "?start=0"), (viewer, f"?user_id={DANA}")):
            read = (await get(me, f"sessions/chat/events{query}")).json()
            assert ("I am dana." in str(read["events"]), read["more"]) == (True, False)
        assert (await post(erin, "sessions/chat/close", {})).status_code == 404
        assert (await post(dana, "sessions/chat/close", {})).status_code == 200
        late = await post(dana, "sessions/chat/messages", {**message, "message_id": "m-2"})
        assert (late.status_code, late.json()["error"]["type"]) == (409, "SessionClosed")
        long = await post(dana, f"sessions/{'x' * 900}/messages", message)
        assert (long.status_code, long.json()["error"]["type"]) == (422, "InvalidInput")


async def test_only_an_operator_writes_state_that_all_users_share(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """Keys with `app:` belong to the application, not to the person who starts an invocation."""
    async with (
        serve(talker(), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "authors") as author,
        person(web.url, openid, "authors", "operators") as both,
    ):
        for path in ("invocations", "sessions/s-1/messages"):
            # The state of an app outlives the test.
            own = {"app": f"app-{env.client.task_queue}", "state": {"app:rate": 2, "own": 1}}
            body = {"agent": "talker", "message": "hi", **own}
            refused = await post(author, path, body)
            assert (refused.status_code, "needs the role 'operator'" in problem(refused)) == (403, True)
            sent = await post(both, path, body)
            assert sent.status_code == 201
            await env.client.invocation(sent.json()["invocation_id"]).result()


async def test_an_operator_forks_in_their_own_name(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """The fork keeps the user of the source, and a fork without an event retries the last step."""
    async with (
        serve(talker(), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "operators") as blind,
        person(web.url, openid, "operators", "viewers") as operator,
    ):
        source = await env.client.start("talker", "hi", id="source-1", user_id=ERIN)
        await source.result()
        path = f"invocations/{source.id}/forks"
        assert (await post(blind, path, {"event": 1})).status_code == 404
        forked = await post(operator, path, {"event": 1, "message": "Hello?"})
        assert (forked.status_code, forked.json()) == (201, {"invocation_id": "source-1~1", "source": "source-1"})
        fork = env.client.invocation("source-1~1")
        await fork.result()
        fork_input = (await fork.log()).state.input
        assert fork_input is not None
        assert (fork_input.user_id, fork_input.requester, fork_input.message) == (ERIN, DANA, "Hello?")
        retried = await post(operator, path, {})
        assert retried.status_code == 201
        await env.client.invocation(retried.json()["invocation_id"]).result()
        impossible = await post(operator, path, {"event": 99})
        assert (impossible.status_code, "there is no event 99" in problem(impossible)) == (422, True)

        async def listed() -> bool:
            return len((await get(operator, path)).json()["forks"]) == 2

        await wait_until(listed, "the forks")
        assert (await get(operator, path)).json()["forks"][0] == {"invocation_id": "source-1~1", "event": 1}


async def test_a_reset_names_the_operator_and_asks_again(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """The answer of the old run does not count in the new one, and the audit has the reason."""
    till = Till()
    pay = FunctionTool(till.pay, require_confirmation=True)
    replies = calls(("pay", {"amount": 5})), says("Done."), says("Done."), says("Done.")
    async with (
        serve(Agent(name="payer", model=ScriptedModel(*replies), tools=[pay]), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "operators", "viewers") as operator,
    ):
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        await approve_and_finish(invocation, "fc-1")
        ends = [
            event.event_id
            for event in (await invocation.history()).events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ]
        path = f"invocations/{invocation.id}/reset"
        wrong = await post(operator, path, {"event_id": ends[1] + 1, "reason": "wrong amount"})
        assert (wrong.status_code, "`WorkflowTaskCompleted`" in problem(wrong)) == (422, True)
        assert (await post(operator, path, {"event_id": ends[1], "reason": ""})).status_code == 422
        reset = await post(operator, path, {"event_id": ends[1], "reason": "wrong amount"})
        assert reset.status_code == 201
        reset_invocation = env.client.invocation(invocation.id)
        assert (await reset_invocation.handle.describe()).run_id == reset.json()["run_id"]
        await wait_for_calls(reset_invocation, "fc-1")
        await reject_and_finish(reset_invocation, "fc-1")
        assert till.paid == [5]
        account = (await gather_invocation(env.client, invocation.id)).by_invocation[invocation.id]
        assert [line["reason"] for line in account if line["kind"] == "reset"] == [f"{DANA}: wrong amount"]


async def test_an_operator_reads_the_prompt_of_a_model_call(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """The prompt contains the earlier messages of the session, and an unknown event is an error."""
    async with (
        serve(talker(), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "operators", "viewers") as operator,
    ):
        session = env.client.session(agent="talker", session_id="prompts", user_id=ERIN)
        await session.say("First.")
        second = await session.send("Second.")
        await second.result()
        path = f"invocations/{quote(second.id, safe='')}/prompt"
        prompt = (await get(operator, path)).json()
        texts = [part["text"] for content in prompt["contents"] for part in content["parts"]]
        assert (prompt["agent"], texts[:3]) == ("talker", ["First.", "Hello.", "Second."])
        missing = await get(operator, f"{path}?event=99")
        assert (missing.status_code, "has no event 99" in problem(missing)) == (404, True)
        assert (await get(operator, f"{path}?event=x")).status_code == 400


async def test_an_account_with_the_default_user_id_starts_nothing(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """An account with the default user ID would own the invocations that programs start without a user ID."""
    async with (
        serve(talker()) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "authors", subject="user") as me,
    ):
        body = {"agent": "talker", "message": "hi"}
        for path in ("invocations", "sessions/s-1/messages"):
            refused = await post(me, path, body)
            assert (refused.status_code, "identifies nobody" in problem(refused)) == (403, True)


async def test_without_a_provider_a_program_may_do_everything_on_this_machine(serve: Serve) -> None:
    """Through a proxy, the access token only reads."""
    body = {"agent": "talker", "message": "hi"}
    async with serve(talker(), verify=False) as env:
        async with site(env.client) as web, web.program() as program:
            started = await program.post("/api/invocations", json=body)
            assert started.status_code == 201
            invocation = env.client.invocation(started.json()["invocation_id"])
            await invocation.result()
            started_input = (await invocation.log()).state.input
            assert started_input is not None
            assert (started_input.user_id, started_input.requester) == ("dana", "dana")
        async with site(env.client, url="https://web.example", names=["web.example"]) as web, web.program() as program:
            assert (await program.post("/api/invocations", json=body)).status_code == 403


async def test_an_agent_that_no_worker_has_announced_is_an_invalid_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This applies to starts and to messages in sessions; the message names the announced agents."""
    monkeypatch.setattr(agent_directory, "GRACE_S", ())
    monkeypatch.setattr(agent_directory, "SETTLED_S", -60)  # although the server may have just started
    body = {"agent": "never_announced", "message": "hi"}
    async with serve(talker(), verify=False) as env, site(env.client) as web, web.program() as program:
        for path in ("invocations", "sessions/s1/messages"):
            refused = await program.post(f"/api/{path}", json=body)
            assert (refused.status_code, "No agent is named 'never_announced'" in problem(refused)) == (422, True)
