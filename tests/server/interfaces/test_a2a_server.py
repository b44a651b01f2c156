"""Agents served over A2A, to clients that send JSON-RPC and REST."""

import json
from typing import Any
from uuid import uuid4

import httpx2 as httpx
import pytest

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.fakes.webhook_receiver import WebhookReceiver
from tests.server.conftest import Serve
from tests.server.interfaces.a2a_agent import make_agent
from tests.server.web.desk import payer
from tests.server.web.logins import gatekeeper, person
from tests.server.web.sites import site
from tests.steps import wait_until
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.client.token_encryption import TokenEncryption
from waystation.core import ids
from waystation.core.approval import ApprovalPolicy
from waystation.extensions import load_interfaces
from waystation.interfaces.a2a_server.task_views import TaskRef
from waystation.testing import ScriptedModel, says

VERSION = {"A2A-Version": "1.0"}


def a2a() -> dict[str, Any]:
    """Return the settings of a server that serves A2A."""
    return {"interfaces": load_interfaces(["a2a"])}


async def call(http: httpx.AsyncClient, agent: str, method: str, **params: Any) -> Any:
    """Call a method over JSON-RPC, and return its result, or its error."""
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    origin = {"Origin": str(http.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    response = await http.post(f"/a2a/{agent}", json=request, headers=VERSION | origin, timeout=60)
    body = response.json()
    return body.get("result", body.get("error"))


def message(*parts: Any, **fields: Any) -> dict[str, Any]:
    """Return a message of texts and data."""
    shown = [{"text": part} if isinstance(part, str) else {"data": part} for part in parts]
    return {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": shown, **fields}


def waits(task: Any) -> Any:
    """Return the only call that a task waits for."""
    [found] = task["status"]["message"]["metadata"]["waystation"]["calls"]
    return found


async def test_a_call_is_answered_after_the_server_was_replaced(serve: Serve) -> None:
    """A task outlives the server that took it. A text does not count as consent, and an answer counts once."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env:
        async with site(env.client, **a2a()) as web, web.program() as program:
            first = message("Pay.", contextId=f"a2a-{env.client.task_queue}")
            sent = (await call(program, "payer", "SendMessage", message=first))["task"]
            again = (await call(program, "payer", "SendMessage", message=first))["task"]
        assert (sent["status"]["state"], again["id"]) == ("TASK_STATE_INPUT_REQUIRED", sent["id"])
        async with site(env.client, **a2a()) as web, web.program() as program:
            task = await call(program, "payer", "GetTask", id=sent["id"])
            text = await call(program, "payer", "SendMessage", message=message("Yes!", taskId=task["id"]))
            assert "a text cannot give" in text["message"]
            answer = {"action": "approve", "digest": "0" * 64}
            stale = await call(program, "payer", "SendMessage", message=message(answer, taskId=task["id"]))
            assert "different arguments" in stale["message"]
            answer["digest"] = waits(task)["digest"]
            last = message(answer, taskId=task["id"])
            done = [await call(program, "payer", "SendMessage", message=last) for _ in range(2)]
            assert done[0]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
            found = await call(program, "payer", "ListTasks", contextId=first["contextId"], includeArtifacts=True)
    assert till.paid == [5]
    assert [task["id"] for task in found["tasks"]] == [sent["id"]]
    assert found["tasks"][0]["artifacts"][-1]["parts"][0]["text"] == "Done."


async def test_a_call_for_others_requires_authorization(serve: Serve) -> None:
    """The task names who is awaited, and refuses messages in words."""
    policy = ApprovalPolicy(approvers=("erin", "fred"), verified=False, quorum=2)
    agent = payer(Till(), {"amount": 5}, approval=policy)
    async with serve(agent) as env, site(env.client, **a2a()) as web, web.program() as program:
        context = f"a2a-{env.client.task_queue}"
        sent = await call(program, "payer", "SendMessage", message=message("Pay.", contextId=context))
        task = sent["task"]
        assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        assert (waits(task)["approvers"], waits(task)["missing"], waits(task)["actions"]) == (
            ["erin", "fred"],
            2,
            ["waive", "cancel"],
        )
        said = await call(program, "payer", "SendMessage", message=message("Continue.", taskId=task["id"]))
        assert "erin, fred" in said["message"]
        answer = {"action": "approve", "digest": waits(task)["digest"]}
        refused = await call(program, "payer", "SendMessage", message=message(answer, taskId=task["id"]))
        assert "code" in refused
        canceled = await call(program, "payer", "CancelTask", id=task["id"])
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        again = await call(program, "payer", "CancelTask", id=task["id"])
        assert again["code"] == -32002


async def test_tasks_of_others_do_not_exist(serve: Serve, there: Installation, openid: FakeOpenId) -> None:
    """A stranger who guesses the ID of a task finds what does not exist, with every method and another agent."""
    agent = Agent(name="talker", model=ScriptedModel(says("Hello."), says("Hello.")))
    async with (
        serve(agent, verify=False, identity=there.worker) as env,
        site(env.client, gatekeeper=gatekeeper(there), **a2a()) as web,
        person(web.url, openid, "authors") as dana,
        person(web.url, openid, "authors", subject="olga@example.com") as other,
    ):
        context = f"a2a-{env.client.task_queue}"
        sent = (await call(dana.http, "talker", "SendMessage", message=message("Hi.", contextId=context)))["task"]
        assert sent["status"]["state"] == "TASK_STATE_COMPLETED"
        for method, params in (
            ("GetTask", {"id": sent["id"]}),
            ("CancelTask", {"id": sent["id"]}),
            ("SubscribeToTask", {"id": sent["id"]}),
            ("SendMessage", {"message": message("Hi.", taskId=sent["id"])}),
        ):
            for http, name in ((other.http, "talker"), (dana.http, "another")):
                refused = await call(http, name, method, **params)
                assert refused["code"] == -32001
        own = (await call(other.http, "talker", "SendMessage", message=message("Hi.", contextId=context)))["task"]
        assert own["id"] != sent["id"]
        for task in (own, sent):
            ref = TaskRef.parse(task["id"])
            assert ref is not None
            await env.temporal.get_workflow_handle(ref.invocation_id.rpartition("/")[0]).terminate()


async def test_states_are_pushed_with_a_sealed_token(
    serve: Serve, there: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program learns that a task waits and that it has ended. Its secrets are nowhere in the history."""
    monkeypatch.setenv("WAYSTATION_PUSH_HOSTS", "127.0.0.1")
    till, token, secret = Till(), f"token-{uuid4().hex}", f"secret-{uuid4().hex}"
    with WebhookReceiver(statuses=[503]) as receiver:
        async with serve(payer(till, {"amount": 5}), identity=there.worker) as env:
            env.client.token_encryption = TokenEncryption(there.sealer)
            async with site(env.client, **a2a()) as web, web.program() as program:
                context = f"a2a-{env.client.task_queue}"
                sent = await call(program, "payer", "SendMessage", message=message("Pay.", contextId=context))
                task = sent["task"]
                config = {
                    "taskId": task["id"],
                    "id": "mine",
                    "url": receiver.url,
                    "token": token,
                    "authentication": {"scheme": "Bearer", "credentials": secret},
                }
                for url in ("https://example.com/hook", "http://169.254.169.254/", f"{receiver.url}?key=1"):
                    refused = await call(program, "payer", "CreateTaskPushNotificationConfig", **config | {"url": url})
                    assert refused["code"] == -32602
                made = await call(program, "payer", "CreateTaskPushNotificationConfig", **config)
                assert "token" not in made
                kept = await call(program, "payer", "ListTaskPushNotificationConfigs", taskId=task["id"])
                assert [each["url"] for each in kept["configs"]] == [receiver.url]

                async def arrived() -> bool:
                    return bool(receiver.taken)

                await wait_until(arrived, "the state")
                answer = {"action": "approve", "digest": waits(task)["digest"]}
                await call(program, "payer", "SendMessage", message=message(answer, taskId=task["id"]))

                async def ended() -> bool:
                    return "TASK_STATE_COMPLETED" in json.dumps([each.body for each in receiver.taken])

                await wait_until(ended, "the end")
                ref = TaskRef.parse(task["id"])
                assert ref is not None
                handle = env.temporal.get_workflow_handle(ids.push_delivery(ref.invocation_id))
                history = (await handle.fetch_history()).to_json()
                await call(program, "payer", "DeleteTaskPushNotificationConfig", taskId=task["id"], id="mine")
                assert await call(program, "payer", "ListTaskPushNotificationConfigs", taskId=task["id"]) == {}
                await handle.terminate()
    first = receiver.taken[0]
    assert first.body["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert first.headers["x-a2a-notification-token"] == token
    assert first.headers["authorization"] == f"Bearer {secret}"
    assert token not in history
    assert secret not in history


async def test_rest_and_older_clients_reach_the_same_task(serve: Serve) -> None:
    """REST works with a slash at the end, streams end with the question, and 0.3 has its own methods."""
    async with serve(make_agent(), verify=False) as env, site(env.client, **a2a()) as web, web.program() as program:
        context = f"a2a-{env.client.task_queue}"
        body = {"message": message("tck-input-required", contextId=context)}
        async with program.stream("POST", "/a2a/tck/message:stream/", json=body, headers=VERSION) as stream:
            lines = [json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: ")]
        assert "TASK_STATE_INPUT_REQUIRED" in json.dumps(lines[-1])
        id = lines[0]["task"]["id"]
        read = await program.get(f"/a2a/tck/tasks/{id}/", headers=VERSION)
        assert (read.json()["id"], read.headers["content-type"]) == (id, "application/json")
        request = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": id}}
        old = (await program.post("/a2a/tck/", json=request)).json()["result"]
        assert (old["id"], old["status"]["state"]) == (id, "input-required")
        reply = message("tck-complete-task", taskId=id)
        done = (await call(program, "tck", "SendMessage", message=reply))["task"]
        texts = [part["text"] for each in done["history"] for part in each["parts"] if "text" in part]
        assert (done["status"]["state"], texts[-1]) == ("TASK_STATE_COMPLETED", "tck-complete-task")
        ref = TaskRef.parse(id)
        assert ref is not None
        await env.temporal.get_workflow_handle(ref.invocation_id.rpartition("/")[0]).terminate()


async def test_cards_tell_strangers_nothing(serve: Serve) -> None:
    """The public card is the same for agents that do not exist. People who are logged in read the rest."""
    agent = Agent(name="talker", description="Talks.", model=ScriptedModel(says("Hello.")))
    async with serve(agent) as env, site(env.client, **a2a()) as web, web.program() as program:
        async with httpx.AsyncClient(base_url=web.url) as stranger:
            cards = [
                (await stranger.get(f"/a2a/{name}/.well-known/agent-card.json")).text.replace(name, "NAME")
                for name in ("talker", "nobody")
            ]
            denied = await stranger.post("/a2a/talker", json={})
        card = await call(program, "talker", "GetExtendedAgentCard")
    assert (cards[0], denied.status_code) == (cards[1], 401)
    assert (card["description"], "Talks." in cards[0]) == ("Talks.", False)
