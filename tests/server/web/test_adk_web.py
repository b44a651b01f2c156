"""ADK's `api_server` routes over HTTP, without google-adk."""

import json
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.web.desk import asker, payer
from tests.server.web.logins import DANA, gatekeeper, person
from tests.server.web.sites import site
from tests.server.web.test_session_api import talker
from tests.server.workflows.outside import Till
from tests.unit.identity.conftest import Installation
from waystation.client import AgentClient
from waystation.core.payload import JsonObject
from waystation.extensions import load_interfaces

OPTIONS: dict[str, Any] = {"interfaces": load_interfaces(["adk"])}


def sessions_of(agent: str, user: str = "user") -> str:
    """Return the path of a user's sessions with an agent."""
    return f"/apps/{agent}/users/{user}/sessions"


def say(agent: str, session: str, *parts: JsonObject, **fields: Any) -> JsonObject:
    """Return the body of a request to `/run`."""
    message = {"role": "user", "parts": list(parts)}
    return {"appName": agent, "userId": "user", "sessionId": session, "newMessage": message, **fields}


def texts(events: list[JsonObject]) -> list[str]:
    """Return the texts of events."""
    return [part["text"] for event in events for part in event["content"]["parts"] if "text" in part]


def respond(call: JsonObject, **response: Any) -> JsonObject:
    """Return the part that answers a call."""
    return {"functionResponse": {"id": call["id"], "name": call["name"], "response": response}}


def waiting_call(events: list[JsonObject]) -> JsonObject:
    """Return the call for which a client of ADK asks a person."""
    ids = [id for event in events for id in event.get("longRunningToolIds", ())]
    calls = [part["functionCall"] for event in events for part in event["content"]["parts"] if "functionCall" in part]
    return next(call for call in reversed(calls) if call["id"] in ids)


async def test_a_client_of_adk_holds_a_conversation(serve: Serve, tmp_path: Path) -> None:
    """List, create, run, stream, read, change state, exchange files, and delete, as with `adk api_server`."""
    async with (
        serve(talker(), verify=False) as env,
        site(env.client, artifacts=tmp_path / "artifacts", **OPTIONS) as web,
        web.program() as program,
    ):
        program.timeout = httpx.Timeout(60)
        name = f"s {env.client.task_queue}"
        assert "talker" in (await program.get("/list-apps")).json()
        path = f"{sessions_of('talker')}/{name}"
        created = await program.post(sessions_of("talker"), json={"sessionId": name, "state": {"color": "red"}})
        assert created.json() | {"lastUpdateTime": 0} == {
            "id": name,
            "appName": "talker",
            "userId": "user",
            "state": {"color": "red"},
            "events": [],
            "lastUpdateTime": 0,
        }
        assert (await program.post(path)).status_code == 409
        first = await program.post("/run", json=say("talker", name, {"text": "Hi."}))
        print(first.text)
        assert texts(first.json()) == ["Hello."]
        second = await program.post("/run_sse", json=say("talker", name, {"text": "Hi."}, streaming=True))
        print(second.text)
        read = (await program.get(path)).json()
        print(json.dumps(read))
        for each in (f"/dev/apps/talker/debug/trace/session/{name}", f"/dev/apps/talker/debug/trace/{read['events'][1]['id']}", f"/dev/apps/talker/users/user/sessions/{name}/events/{read['events'][1]['id']}/graph", "/dev/apps/talker/graph", "/dev/apps/talker/build_graph", "/dev/apps/talker/build_graph_image", "/version", "/list-apps?detailed=true", sessions_of("talker"), "/run_live", "/dev/apps/talker/eval_sets", "/dev-ui/"):
            r = await program.get(each); print(each, r.status_code, r.text, r.headers["content-security-policy"][:30])
        print((await program.patch(path, json={"stateDelta": {"size": 5}})).json()["state"])
        file = {"filename": "a/b c.txt", "artifact": {"inlineData": {"mimeType": "text/x", "data": "AP-_"}}}
        r= await program.post(f"{path}/artifacts", json=file); print(r.text)
        for e in ("", "/a/b c.txt", "/a/b c.txt/versions", "/a/b c.txt/versions/0", "/a/b c.txt/versions/0/metadata", "/a/b c.txt/versions/metadata", "/x", "/a/b c.txt?version=7"):
            r = await program.get(f"{path}/artifacts{e}"); print(e, r.status_code, r.text)
        r = await program.delete(path); print(r.status_code, r.text)
        r = await program.get(path); print(r.status_code, r.text)
        assert 0


async def test_a_call(serve: Serve, tmp_path: Path) -> None:
    till = Till()
    async with (
        serve(payer(till, {"amount": 5}), asker("Why?"), verify=False) as env,
        site(env.client, **OPTIONS) as web,
        web.program() as program,
    ):
        program.timeout = httpx.Timeout(60)
        name = f"s-{env.client.task_queue}"
        for agent, response in (("payer", {"confirmed": True, "payload": {"amount": 5}}), ("asker", {"result": "because"})):
            await program.post(f"{sessions_of(agent)}/{agent}{name}")
            r = await program.post("/run_sse", json=say(agent, agent+name, {"text": "Hi."}))
            print(r.text)
            r = await program.post("/run", json=say(agent, agent+name, {"text": "Hi."}))
            print(r.text)
            r = await program.post("/run", json=say(agent, agent+name, respond(waiting_call(r.json()), **response)))
            print(r.text)
        assert 0
