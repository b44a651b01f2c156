"""The JSON API for sessions."""

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2 as httpx

from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.web.logins import DANA, gatekeeper, person
from tests.server.web.sites import site
from tests.server.web.test_call_api import name_of, post
from tests.steps import wait_until
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.testing import ScriptedModel, says

SESSIONS = "/api/v1/sessions"


def talker() -> Agent:
    """Return an agent that answers two messages."""
    return Agent(name="talker", model=ScriptedModel(says("Hello."), says("Hello again.")))


async def test_a_program_holds_a_conversation(serve: Serve, tmp_path: Path) -> None:
    """Create, send, read, follow, exchange a file and state, and close. Repeated requests count once."""
    async with (
        serve(talker(), verify=False) as env,
        site(env.client, artifacts=tmp_path / "artifacts") as web,
        web.program() as program,
    ):
        key = {"Idempotency-Key": f"k-{env.client.task_queue}"}
        body = {"agent": "talker", "state": {"color": "red"}}
        created = [await post(program, SESSIONS, body, **key) for _ in range(2)]
        assert [(each.status_code, each.json()["existed"]) for each in created] == [(201, False), (200, True)]
        path = f"{SESSIONS}/{quote(created[0].json()['id'], safe='')}"
        sent = [await post(program, f"{path}/messages", {"message": "Hi."}, **key) for _ in range(2)]
        assert [each.json()["duplicate"] for each in sent] == [False, True]
        assert sent[0].json()["invocation_id"] == sent[1].json()["invocation_id"]
        await env.client.invocation(sent[0].json()["invocation_id"]).result()

        async def answered() -> bool:
            return "Hello." in (await program.get(f"{path}/events")).text

        await wait_until(answered, "the reply")
        assert (await post(program, f"{path}/state", {"state": {"size": 5}})).status_code == 200

        async def changed() -> bool:
            return bool((await program.get(f"{path}/state")).json()["state"] == {"color": "red", "size": 5})

        await wait_until(changed, "the state")
        file = {"name": "a b.txt", "data": base64.b64encode(b"\x00text").decode(), "mime_type": "text/x"}
        program.timeout = httpx.Timeout(60)  # the object stores are loaded on the first use
        assert (await post(program, f"{path}/artifacts", file)).json() == {
            "name": "a b.txt",
            "version": 0,
            "mime_type": "text/x",
        }
        assert [each["name"] for each in (await program.get(f"{path}/artifacts")).json()["artifacts"]] == ["a b.txt"]
        content = await program.get(f"{path}/artifacts/content", params={"name": "a b.txt"})
        assert (content.content, content.headers["content-type"]) == (b"\x00text", "application/octet-stream")
        assert (await post(program, f"{path}/close", {})).json()["status"] == "closed"
        async with program.stream("GET", f"{path}/events/stream") as stream:
            lines = [line async for line in stream.aiter_lines()]
        assert "event: end" in lines
        texts = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        assert "Hello." in json.dumps(texts)

        async def listed() -> bool:
            found = (await program.get(SESSIONS, params={"q": created[0].json()["session_id"]})).json()["sessions"]
            return [each["status"] for each in found] == ["closed"]

        await wait_until(listed, "the session")
        late = await post(program, f"{path}/messages", {"message": "Hi."})
        assert (late.status_code, name_of(late)) == (409, "SessionClosed")


async def test_people_continue_only_their_own_sessions(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """A stranger does not learn that a session exists, and only operators change state that all users share."""
    async with (
        serve(talker(), verify=False) as env,
        site(env.client, gatekeeper=gatekeeper(there)) as web,
        person(web.url, openid, "authors") as dana,
        person(web.url, openid, "authors", subject="olga@example.com") as other,
        person(web.url, openid, "authors", "viewers", subject="vera@example.com") as viewer,
    ):
        body: dict[str, Any] = {"agent": "talker", "session_id": f"own-{env.client.task_queue}"}
        refused = await post(dana.http, SESSIONS, {**body, "state": {"app:rate": 1}})
        assert (refused.status_code, name_of(refused)) == (403, "NotAllowed")
        created = await post(dana.http, SESSIONS, body)
        path = f"{SESSIONS}/{quote(created.json()['id'], safe='')}"
        assert (await dana.http.get(path)).json()["user_id"] == DANA
        message = {"message": "Hi."}
        for me, status in ((other, 404), (viewer, 403)):
            assert (await post(me.http, f"{path}/messages", message)).status_code == status
            assert (await me.http.get(path)).status_code == (404 if me is other else 200)
        again = await post(dana.http, SESSIONS, body)
        assert (again.status_code, name_of(again)) == (409, "SessionExists")
        await env.client.session(agent="talker", session_id=body["session_id"], user_id=DANA).handle.terminate()
