"""ADK's `api_server` routes over HTTP, without google-adk."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import pytest

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.streams.held import Held
from tests.server.web.desk import asker, payer
from tests.server.web.logins import DANA, gatekeeper, person
from tests.server.web.sites import path_of, site
from tests.server.web.test_session_api import talker
from tests.server.web.test_tenants_of_people import member, tenants_installed
from tests.steps import wait_until
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.core.approval import ApprovalPolicy
from waystation.core.payload import JsonObject
from waystation.extensions import load_interfaces
from waystation.interfaces.adk_web import front_end
from waystation.testing import says

OPTIONS: dict[str, Any] = {"interfaces": load_interfaces(["adk"])}
SAME_SITE = {"Sec-Fetch-Site": "same-origin"}
HELLO = {"text": "Hi."}


def path_to(agent: str, session: str = "", user: str = "user") -> str:
    """Return the path of a session, or of a user's sessions with an agent."""
    return f"/apps/{agent}/users/{user}/sessions" + (f"/{session}" if session else "")


def make_run(agent: str, session: str, *parts: JsonObject, **fields: Any) -> JsonObject:
    """Return the body that sends a message to an agent."""
    message = {"role": "user", "parts": list(parts)}
    return {"appName": agent, "userId": "user", "sessionId": session, "newMessage": message, **fields}


async def run(http: httpx.AsyncClient, *message: Any, **fields: Any) -> httpx.Response:
    """Send a message to an agent."""
    path = "/run_sse" if "streaming" in fields else "/run"
    return await http.post(path, json=make_run(*message, **fields), headers=SAME_SITE, timeout=60)


def texts(events: list[JsonObject]) -> list[str]:
    """Return the texts of events."""
    return [part["text"] for event in events for part in event["content"]["parts"] if "text" in part]


def read_stream(response: httpx.Response) -> list[JsonObject]:
    """Return the events of a stream, as ADK's clients read it."""
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def respond(events: list[JsonObject], **response: Any) -> JsonObject:
    """Return the part that answers the call for which a client of ADK asks a person."""
    ids = [id for event in events for id in event.get("longRunningToolIds", ())]
    called = [part["functionCall"] for event in events for part in event["content"]["parts"] if "functionCall" in part]
    call = next(call for call in reversed(called) if call["id"] in ids)
    return {"functionResponse": {"id": call["id"], "name": call["name"], "response": response}}


async def test_a_client_of_adk_holds_a_conversation(serve: Serve) -> None:
    """List, create, run, stream, read, and delete, as with `adk api_server`."""
    async with serve(talker(), verify=False) as env, site(env.client, **OPTIONS) as web, web.program() as program:
        name = f"talk {env.client.task_queue}"
        assert "talker" in (await program.get("/list-apps")).json()
        created = await program.post(path_to("talker"), json={"sessionId": name, "state": {"color": "red"}})
        empty = {"id": name, "appName": "talker", "userId": "user", "state": {"color": "red"}, "events": []}
        assert {**created.json(), "lastUpdateTime": 0} == {**empty, "lastUpdateTime": 0}
        again = await program.post(path_to("talker", name))
        assert (again.status_code, again.json()["detail"][:20]) == (409, "Session with id talk")
        first = await run(program, "talker", name, HELLO)
        assert texts(first.json()) == ["Hello."]
        assert {"id", "invocationId", "author", "timestamp", "content", "actions"} <= first.json()[0].keys()
        second = await run(program, "talker", name, HELLO, streaming=False)
        assert second.headers["content-type"].startswith("text/event-stream")
        assert texts(read_stream(second)) == ["Hello again."]
        read = (await program.get(path_to("talker", name))).json()
        assert texts(read["events"]) == ["Hi.", "Hello.", "Hi.", "Hello again."]

        async def listed() -> bool:
            return name in [each["id"] for each in (await program.get(path_to("talker"))).json()]

        await wait_until(listed, "the session")
        assert [(await program.delete(path_to("talker", name))).json() for _ in range(2)] == [None, None]
        assert (await program.get(path_to("talker", name))).status_code == 404
        assert (await run(program, "talker", name, HELLO)).status_code == 404


async def test_text_is_streamed_while_it_is_generated(serve: Serve) -> None:
    """Pieces are marked `partial`, and the complete event follows them."""
    model = Held(says("Hello."))
    agent = Agent(name="talker", model=model)
    async with serve(agent, verify=False) as env, site(env.client, **OPTIONS) as web, web.program() as program:
        name = (await program.post(path_to("talker"))).json()["id"]
        body = make_run("talker", name, HELLO, streaming=True)
        events: list[JsonObject] = []
        async with program.stream("POST", "/run_sse", json=body, timeout=60) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line[6:]))
                    model.go_on.set()
        assert events[0]["partial"]
        assert texts([event for event in events if event.get("partial")]) == texts([events[-1]]) == ["Hello."]


async def test_state_and_files_are_exchanged(serve: Serve) -> None:
    """The next invocation starts with changed state. File names may contain slashes."""
    async with (
        serve(talker(), verify=False) as env,
        site(env.client, artifacts=env.services.artifacts, **OPTIONS) as web,
        web.program() as program,
    ):
        path = path_to("talker", (await program.post(path_to("talker"), json={})).json()["id"])
        assert (await program.patch(path, json={"stateDelta": {"size": 5}})).json()["state"] == {"size": 5}
        refused = await program.patch(path, json={"stateDelta": {"app:rate": 1}})
        assert (refused.status_code, "'app:rate' cannot be changed here" in refused.json()["detail"]) == (422, True)
        part = {"inlineData": {"mimeType": "text/x", "data": "AP-_"}}
        saved = await program.post(f"{path}/artifacts", json={"filename": "a/b c.txt", "artifact": part})
        assert (saved.json()["version"], saved.json()["mimeType"], "canonicalUri" in saved.json()) == (
            0,
            "text/x",
            False,
        )
        uri = {"fileData": {"fileUri": "file:///etc/passwd", "mimeType": "text/plain"}}
        assert (await program.post(f"{path}/artifacts", json={"filename": "x", "artifact": uri})).status_code == 422
        file = f"{path}/artifacts/a/b c.txt"
        found = [(await program.get(each)).json() for each in (f"{path}/artifacts", f"{file}/versions")]
        assert found == [["a/b c.txt"], [0]]
        for each in (file, f"{file}?version=0", f"{file}/versions/0", f"{file}/versions/latest"):
            assert (await program.get(each)).json() == part
        assert [(await program.get(f"{file}/versions/{each}")).status_code for each in ("7", "x")] == [404, 422]


async def test_a_call_is_confirmed_once(serve: Serve) -> None:
    """The function response of a client is the answer that the inbox has, too. A later one is refused in words."""
    till = Till()
    async with (
        serve(payer(till, {"amount": 5}), verify=False) as env,
        site(env.client, **OPTIONS) as web,
        web.program() as program,
        web.browser() as inbox,
    ):
        name = (await program.post(path_to("payer"))).json()["id"]
        events = (await run(program, "payer", name, HELLO)).json()
        answer = respond(events, confirmed=True, payload={"amount": 5})
        id = answer["functionResponse"]["id"].removesuffix("-confirmation")
        assert "This call is waiting" in (await inbox.page(path_of(id))).text
        assert texts((await run(program, "payer", name, answer)).json()) == ["Done."]
        assert "This call was approved by dana" in (await inbox.page(path_of(id))).text
        late = await run(program, "payer", name, respond(events, confirmed=False), streaming=False)
        assert (late.status_code, late.headers["content-type"][:17]) == (409, "text/event-stream")
        assert "was already answered" in read_stream(late)[0]["error"]
        invocation = id.rpartition("/")[0]
        audit = (await program.get(f"/api/v1/invocations/{quote(invocation, safe='')}/audit")).json()
        assert [each["interface"] for each in audit["invocations"][invocation] if each["kind"] == "decided"] == ["adk"]
        assert till.paid == [5]


async def test_a_question_is_answered_in_the_inbox_or_by_a_client(serve: Serve) -> None:
    """Calls of different turns have different IDs, so an answer reaches its own call."""
    async with serve(asker("Why?"), verify=False) as env, site(env.client, **OPTIONS) as web, web.program() as program:
        name = (await program.post(path_to("asker"))).json()["id"]
        asked = (await run(program, "asker", name, HELLO)).json()
        answer = respond(asked, result="because")
        mixed = await run(program, "asker", name, answer, HELLO)
        assert (mixed.status_code, "Send them separately" in mixed.json()["detail"]) == (422, True)
        assert texts((await run(program, "asker", name, answer)).json()) == ["Done."]
        read = (await program.get(path_to("asker", name))).json()["events"]
        parts = [part for event in read for part in event["content"]["parts"]]
        ids = {each["id"] for part in parts for key, each in part.items() if key.startswith("function")}
        assert ids == {answer["functionResponse"]["id"]}
        assert answer["functionResponse"]["id"] == f"{asked[0]['invocationId']}/fc-1"


async def test_policies_count_for_clients_of_adk(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """A response proves neither a digest nor another person, so the call waits for the inbox."""
    shown = payer(Till(), {"amount": 5}, approval=ApprovalPolicy(digest=True))
    others = payer(Till(), {"amount": 5}, approval=ApprovalPolicy(approvers=("role:finance",)))
    others.name = "others"
    async with (
        serve(shown, others, identity=there.worker, verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there), **OPTIONS) as web,
        person(web.url, openid, "authors", "approvers") as me,
    ):
        for agent, status, words in (
            ("payer", 409, "Answer the call at /approvals/"),
            ("others", 403, "Its approvers: role:finance"),
        ):
            name = (await me.http.post(path_to(agent), headers=SAME_SITE)).json()["id"]
            events = (await run(me.http, agent, name, HELLO)).json()
            refused = await run(me.http, agent, name, respond(events, confirmed=True))
            assert (refused.status_code, words in refused.json()["detail"]) == (status, True)
            await env.client.session(agent=agent, session_id=name, user_id=DANA).cancel()


async def test_people_have_only_their_own_sessions(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """Another person's session does not exist, neither under that person's name nor by the ID of an event or a call."""
    async with (
        serve(payer(Till(), {"amount": 5}), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there), **OPTIONS) as web,
        person(web.url, openid, "authors") as dana,
        person(web.url, openid, "authors", "viewers", "approvers", subject="olga@example.com") as olga,
        person(web.url, openid, "viewers", subject="vera@example.com") as viewer,
    ):
        name = f"own-{env.client.task_queue}"
        assert (await dana.http.post(path_to("payer", name), headers=SAME_SITE)).status_code == 200
        events = (await run(dana.http, "payer", name, HELLO)).json()
        own = [path_to("payer", name, user) for user in ("user", DANA)]
        event = f"/dev/apps/payer/debug/trace/{events[0]['id']}"
        for path in (*own, event, f"/dev/apps/payer/debug/trace/session/{name}"):
            assert [(await each.http.get(path)).status_code for each in (dana, olga, viewer)] == [200, 404, 404], path
        assert (await olga.http.get(path_to("payer", user=DANA))).status_code == 404
        assert name not in (await olga.http.get(path_to("payer"))).text
        assert (await olga.http.post(path_to("payer", name), headers=SAME_SITE)).status_code == 200  # her own
        stolen = await run(olga.http, "payer", name, respond(events, confirmed=True))
        assert (stolen.status_code, stolen.json()["title"]) == (404, "Unknown call")
        followed = {"newMessage": None, "invocationId": events[0]["invocationId"]}
        assert (await run(dana.http, "payer", name, **followed)).json() == events
        assert (await run(olga.http, "payer", name, **followed)).status_code == 422
        unknown = {**followed, "invocationId": f"{followed['invocationId']}99"}
        assert (await run(dana.http, "payer", name, **unknown)).status_code == 422
        assert (await viewer.http.post(path_to("payer", name), headers=SAME_SITE)).status_code == 403
        assert (
            await dana.http.delete(path_to("payer", name, "olga@example.com"), headers=SAME_SITE)
        ).status_code == 404
        for user in (DANA, "olga@example.com"):
            await env.client.session(agent="payer", session_id=name, user_id=user).cancel()


async def test_the_same_person_in_another_tenant_is_somebody_else(
    serve: Serve, tmp_path: Path, openid: FakeOpenId
) -> None:
    """Sessions of a tenant are neither listed nor read in another one."""
    there = tenants_installed(tmp_path, openid)
    async with (
        serve(talker(), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there), **OPTIONS) as web,
        member(web.url, openid, "acme", "authors") as own,
        member(web.url, openid, "globex", "authors") as other,
    ):
        name = f"own-{env.client.task_queue}"
        assert (await own.http.post(path_to("talker", name), headers=SAME_SITE)).status_code == 200

        async def listed() -> bool:
            return name in (await own.http.get(path_to("talker"))).text

        await wait_until(listed, "the session")
        assert name not in (await other.http.get(path_to("talker"))).text
        assert (await other.http.get(path_to("talker", name))).status_code == 404


async def test_browsers_send_changes_only_from_our_pages(serve: Serve) -> None:
    """A cookie is not enough: a page of another site, and one that nobody names, are refused."""
    async with serve(talker(), verify=False) as env, site(env.client, **OPTIONS) as web, web.browser() as me:
        for headers in ({}, {"Origin": "https://mallory.example"}, {"Sec-Fetch-Site": "cross-site"}):
            for method, path in (("POST", path_to("talker")), ("DELETE", path_to("talker", "x")), ("POST", "/run")):
                refused = await me.http.request(method, path, json={}, headers={**headers, "Accept": "*/*"})
                assert (refused.status_code, refused.json()["error"]["type"]) == (403, "ForeignForm")
        async with httpx.AsyncClient(base_url=web.url) as stranger:
            assert (await stranger.get("/list-apps")).status_code == 401


async def test_agents_and_turns_are_drawn(serve: Serve) -> None:
    """The spans of a trace are those of the timeline, and graphs name agents and tools."""
    async with (
        serve(payer(Till(), {"amount": 5}, require_confirmation=False), verify=False) as env,
        site(env.client, **OPTIONS) as web,
        web.program() as program,
    ):
        name = (await program.post(path_to("payer"))).json()["id"]
        events = (await run(program, "payer", name, HELLO)).json()
        spans = (await program.get(f"/dev/apps/payer/debug/trace/session/{name}")).json()
        operations = [span["attributes"]["gen_ai.operation.name"] for span in spans]
        assert operations == ["invoke_agent", "generate_content", "execute_tool", "generate_content"]
        assert all(span["start_time"] <= span["end_time"] for span in spans)
        one = (await program.get(f"/dev/apps/payer/debug/trace/{events[-1]['id']}")).json()
        assert (one, one["gcp.vertex.agent.event_id"]) == (spans[-1]["attributes"], events[-1]["id"])
        marked = f"/dev/apps/payer/users/user/sessions/{name}/events/{events[0]['id']}/graph"
        for path in ("/dev/apps/payer/graph", marked):
            assert '"payer" -> "pay"' in (await program.get(path)).json()["dotSrc"]
        tree = (await program.get("/dev/apps/payer/build_graph")).json()["root_agent"]
        assert (tree["name"], tree["tools"]) == ("payer", [{"name": "pay"}])
        assert (await program.get("/dev/apps/lacking/graph")).json()["detail"] == "App not found: lacking"


async def test_the_front_end_needs_google_adk(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only its pages have a policy of their own. Without the package, the page says what to install."""
    async with serve(talker(), verify=False) as env:
        async with site(env.client, **OPTIONS) as web, web.program() as program:
            missing = await program.get("/dev-ui/")
            assert "pip install 'waystation[web,adk]'" in missing.json()["error"]["message"]
            live = await program.get("/run_live", headers={"Upgrade": "websocket", "Connection": "Upgrade"})
            assert (live.status_code, "do not process live audio" in live.json()["detail"]) == (501, True)
        (tmp_path / "index.html").write_text("front end")
        monkeypatch.setattr(front_end, "find_front_end", lambda: tmp_path)
        async with site(env.client, **OPTIONS) as web, web.program() as program:
            page = await program.get("/dev-ui", follow_redirects=True)
            assert (page.url.path, page.text) == ("/dev-ui/", "front end")
            config = await program.get("/dev-ui/assets/config/runtime-config.json")
            assert config.json() == {"backendUrl": "", "telemetry": False}
            policies = {
                path: (await program.get(path)).headers["content-security-policy"]
                for path in ("/dev-ui/", "/dev-ui/missing.js", "/list-apps", "/approvals", "/static/style.css")
            }
            relaxed = {path for path, policy in policies.items() if "unsafe-inline" in policy or "wasm" in policy}
            assert relaxed == {"/dev-ui/"}
            async with httpx.AsyncClient(base_url=web.url) as stranger:
                assert (await stranger.get("/dev-ui/")).status_code == 401
