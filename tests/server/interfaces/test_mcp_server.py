"""Agents as tools of MCP clients, driven with the client of the package `mcp`."""

from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult, InputResponses

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.server.interfaces.mcp_clients import Person, accepts, ask, connected, settle, start_task, text_of
from tests.server.web.desk import payer
from tests.server.web.sites import site
from tests.steps import wait_until
from tests.unit.identity.conftest import Installation, installed
from tests.unit.identity.test_bearer import RESOURCE, write
from waystation.agents import Agent
from waystation.approvers import Gatekeeper
from waystation.approvers.audit import gather_invocation
from waystation.core.approval import ApprovalPolicy
from waystation.extensions import load_interfaces
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, ScriptedModel, calls, responses, says
from waystation.tools import AgentTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

INTERFACES = load_interfaces(["mcp"])
TABLES = '[oidc.grant]\nauthor = ["role:authors"]\n[envelope]\npublic_key = "envelope-public.json"\n'
FINANCE = ApprovalPolicy(approvers=("role:finance",), verified=True)


@pytest.fixture
def openid(own_openid: FakeOpenId) -> FakeOpenId:
    """Return a provider whose tokens are for this server."""
    own_openid.audience = RESOURCE
    return own_openid


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    """Return an installation whose workers and web server accept access tokens."""
    return installed(tmp_path / "identity", openid, {"audience": RESOURCE, "tenant_claim": "org"})


def keeper_of(there: Installation) -> Gatekeeper:
    """Return the gatekeeper of a web server that accepts access tokens."""
    file = write(there.folder / "tokens.toml", there.provider, 'tenant_claim = "org"', tables=TABLES)
    return Gatekeeper.from_file(file, "default", interface="web")


def site_of(client: Any, **options: Any) -> Any:
    """Serve the web application with the interface."""
    return site(client, interfaces=INTERFACES, **options)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_without_tasks_calls_an_agent_and_answers_with_a_tool(serve: Serve, mode: str) -> None:
    """The result of an agent that waits names the call and the page, and says what to read later."""
    till = Till()
    async with (
        serve(payer(till, {"amount": 5})) as env,
        site_of(env.client) as web,
        connected(web.url, mode=mode) as client,
    ):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"payer", "agent_start", "agent_get", "agent_answer", "agent_cancel"} <= set(tools)
        waiting = await client.call_tool("payer", {"message": "Pay."})
        state = waiting.structured_content
        assert (waiting.is_error, state["status"]) == (False, "waiting")
        [call] = state["calls"]
        assert (call["tool"], call["args"], "approve" in call["allowed"]) == ("pay", {"amount": 5}, True)
        assert call["link"].startswith(f"{web.url}/approvals/")
        assert state["invocation_id"] in text_of(waiting)
        answer = {"call_id": call["id"], "action": "approve", "digest": call["digest"]}
        assert (await client.call_tool("agent_answer", answer)).structured_content["outcome"] == "accepted"
        ended = await client.call_tool("agent_get", {"invocation_id": state["invocation_id"], "wait_s": 50})
        assert (text_of(ended), ended.structured_content["status"], till.paid) == ("Done.", "completed", [5])
        again = await client.call_tool("agent_answer", answer)
        assert (again.is_error, again.structured_content["outcome"]) == (True, "already_answered")


async def test_the_person_of_a_client_answers_in_a_form_while_the_client_waits(serve: Serve) -> None:
    """A call of the tool is repeated with the answer, and continues the same invocation."""
    till, person = Till(), Person(accepts(confirm=True))
    async with (
        serve(payer(till, {"amount": 5})) as env,
        site_of(env.client) as web,
        connected(web.url, person=person) as client,
    ):
        result = await client.call_tool("payer", {"message": "Pay."})
        assert (text_of(result), till.paid) == ("Done.", [5])
        answers: InputResponses = {"0" * 32: accepts(confirm=True)}
        for state in (None, "no-invocation"):  # an agent that started again could repeat effects
            with pytest.raises(MCPError):
                await client.call_tool("payer", {"message": "Pay."}, input_responses=answers, request_state=state)
    assert '"amount": 5' in person.asked[0].message


async def test_a_task_is_answered_in_part_and_completes(serve: Serve) -> None:
    """Each call that the person may answer is a form; what was answered is no longer listed."""
    till = Till()
    async with (
        serve(payer(till, {"amount": 5}, {"amount": 6})) as env,
        site_of(env.client) as web,
        connected(web.url, person=Person(), tasks=True) as client,
    ):
        task = await start_task(client, "payer", message="Pay.")
        assert (task["resultType"], task["ttlMs"]) == ("task", None)
        id = task["taskId"]
        task = await settle(client, id)
        first, second = task["inputRequests"]
        await ask(client, "tasks/update", id, input_responses={first: accepts(confirm=True).model_dump()})
        task = await ask(client, "tasks/get", id)
        assert (task["status"], list(task["inputRequests"])) == ("input_required", [second])
        await ask(client, "tasks/update", id, input_responses={second: accepts(confirm=False).model_dump()})
        task = await settle(client, id)
        assert (task["status"], task["result"]["content"][0]["text"], till.paid) == ("completed", "Done.", [5])


async def test_a_task_of_another_person_does_not_exist_and_only_an_approver_answers(
    serve: Serve, there: Installation, openid: FakeOpenId
) -> None:
    """The requester's task names who is awaited. The answer of an approver needs no access to the task."""
    till = Till()
    agent = payer(till, {"amount": 5}, approval=FINANCE)

    def token(subject: str, role: str, org: str = "acme") -> str:
        return openid.token(subject, roles=[role], org=org)

    async with (
        serve(agent, identity=there.worker) as env,
        site_of(env.client, gatekeeper=keeper_of(there)) as web,
        connected(web.url, token=token("ann", "authors"), person=Person(), tasks=True) as ann,
        connected(web.url, token=token("bob", "authors"), person=Person(), tasks=True) as bob,
        connected(web.url, token=token("ann", "authors", "globex"), person=Person(), tasks=True) as namesake,
        connected(web.url, token=token("mallory", "finance", "globex")) as mallory,
        connected(web.url, token=token("erin", "finance")) as erin,
    ):
        id = (await start_task(ann, "payer", message="Pay."))["taskId"]
        task = await settle(ann, id)
        assert f"waits for finance: {web.url}/approvals/" in task["statusMessage"]
        assert task["status"] == "working"
        [call] = (await ann.call_tool("agent_get", {"invocation_id": id})).structured_content["calls"]
        assert call["allowed"] == []
        unknown = f"No invocation has the ID {id!r}. In a URL, write `/` in an ID as %2F."
        for other in (bob, namesake):
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                problems = [await refusal(ask(other, method, each)) for each in (id, "no-task")]
                assert problems == [unknown, unknown.replace(id, "no-task")]
            for tool in ("agent_get", "agent_cancel"):
                assert text_of(await other.call_tool(tool, {"invocation_id": id})) == unknown
        answer = {"call_id": call["id"], "action": "approve", "digest": call["digest"]}
        refused = [text_of(await each.call_tool("agent_answer", answer)) for each in (ann, bob, mallory)]
        assert "does not name you" in refused[0]
        assert "No call has the ID" in refused[1]
        assert refused[2] == refused[1]
        assert (await erin.call_tool("agent_answer", answer)).structured_content["outcome"] == "accepted"
        task = await settle(ann, id)
        assert (task["status"], till.paid) == ("completed", [5])
        lines = (await gather_invocation(env.client, id)).by_invocation[id]
        [line] = [line for line in lines if line["kind"] == "decided"]
        assert (line["interface"], line["verified"]["subject"]) == ("mcp", "erin")


async def refusal(request: Any) -> str:
    """Return the text of the error for invalid parameters that a request gets."""
    with pytest.raises(MCPError) as caught:
        await request
    assert caught.value.error.code == -32602
    return str(caught.value.error.message)


async def test_forms_that_were_closed_or_do_not_fit_answer_nothing(serve: Serve) -> None:
    """Only `confirm` decides; a declined form is a rejection."""
    till = Till()
    async with (
        serve(payer(till, {"amount": 5})) as env,
        site_of(env.client) as web,
        connected(web.url, person=Person(ElicitResult(action="cancel")), tasks=True) as client,
    ):
        id = (await start_task(client, "payer", message="Pay."))["taskId"]
        task = await settle(client, id)
        [key] = task["inputRequests"]
        for response in ({"action": "accept", "content": {"approve": True}}, {"action": "accept"}, {"confirm": True}):
            await refusal(ask(client, "tasks/update", id, input_responses={key: response}))
        for responses in ({key: {"action": "cancel"}}, {"0" * 32: {"action": "accept", "content": {"confirm": True}}}):
            await ask(client, "tasks/update", id, input_responses=responses)
            assert list((await ask(client, "tasks/get", id))["inputRequests"]) == [key]
        await ask(client, "tasks/update", id, input_responses={key: {"action": "decline"}})
        task = await settle(client, id)
        assert (task["status"], till.paid) == ("completed", [])


async def test_an_answer_counts_only_for_what_was_shown(serve: Serve) -> None:
    """A model has to name the digest of the call. Forms of one invocation do not answer another one."""
    till = Till()
    other = payer(till, {"amount": 5}).model_copy(update={"name": "other_payer"})
    async with (
        serve(payer(till, {"amount": 5}), other) as env,
        site_of(env.client) as web,
        connected(web.url, person=Person(), tasks=True) as client,
    ):
        tasks = [(await start_task(client, name, message="Pay."))["taskId"] for name in ("payer", "other_payer")]
        keys = [list((await settle(client, id))["inputRequests"]) for id in tasks]
        assert not set(keys[0]) & set(keys[1])
        yes = accepts(confirm=True).model_dump()
        await ask(client, "tasks/update", tasks[1], input_responses=dict.fromkeys(keys[0], yes))
        call = (await client.call_tool("agent_get", {"invocation_id": tasks[0]})).structured_content["calls"][0]
        answer = {"call_id": call["id"], "action": "approve"}
        for more, problem in (
            ({}, "digest"),
            ({"digest": ""}, "digest"),
            ({"digest": "0" * 64}, "different arguments"),
        ):
            refused = await client.call_tool("agent_answer", {**answer, **more})
            assert (refused.is_error, problem in text_of(refused)) == (True, True), text_of(refused)
        for id, shown in zip(tasks, keys, strict=True):
            assert list((await ask(client, "tasks/get", id))["inputRequests"]) == shown
            await ask(client, "tasks/cancel", id)
        assert till.paid == []


async def test_the_form_of_an_edited_call_is_another_one(serve: Serve) -> None:
    """An answer to the form that was shown before is ignored."""
    till = Till()
    policy = ApprovalPolicy(quorum=2, verified=False)
    async with (
        serve(payer(till, {"amount": 5}, approval=policy), verify=False) as env,
        site_of(env.client) as web,
        connected(web.url, person=Person(), tasks=True) as client,
    ):
        id = (await start_task(client, "payer", message="Pay."))["taskId"]
        [shown] = (await settle(client, id))["inputRequests"]
        await env.client.invocation(id).answer("edit", "fc-1", args={"amount": 900}, by="mallory")
        [changed] = (await ask(client, "tasks/get", id))["inputRequests"]
        assert changed != shown
        await ask(client, "tasks/update", id, input_responses={shown: accepts(confirm=True).model_dump()})
        [call] = (await client.call_tool("agent_get", {"invocation_id": id})).structured_content["calls"]
        assert ("dana" in call["approved_by"], till.paid) == (False, [])
        await ask(client, "tasks/cancel", id)


async def test_a_call_of_a_called_agent_has_a_form(serve: Serve) -> None:
    """One with arguments that are too long to be read in a form has a link."""
    till, model = Till(), ScriptedModel(calls(("payer", {"request": "Pay."})), says("Paid."))
    paying = payer(till, {"amount": 5}, {"amount": 6, "note": "x" * 4_000})
    async with (
        serve(Agent(name="boss", model=model, tools=[AgentTool(paying)])) as env,
        site_of(env.client) as web,
        connected(web.url, person=Person(), tasks=True) as client,
    ):
        id = (await start_task(client, "boss", message="Pay."))["taskId"]

        async def find_calls() -> Any:
            state = (await client.call_tool("agent_get", {"invocation_id": id})).structured_content
            return state["calls"] if len(state["calls"]) == 2 else None

        waiting = await wait_until(find_calls, "the calls of the called agent")
        [key] = (await ask(client, "tasks/get", id))["inputRequests"]
        await ask(client, "tasks/update", id, input_responses={key: accepts(confirm=True).model_dump()})
        [long] = [call for call in waiting if "note" in call["args"]]
        assert long["link"].startswith(f"{web.url}/approvals/")
        answer = {"call_id": long["id"], "action": "reject", "digest": long["digest"]}
        await client.call_tool("agent_answer", answer)
        assert (await settle(client, id))["status"] == "completed"
        assert till.paid == [5]


def ask_why() -> None:
    """Ask a person why."""


def ask_once(request: LlmRequest) -> LlmResponse | str:
    """Ask, and repeat the answer."""
    answers = responses(request)
    return str(answers[0][1]["result"]) if answers else calls(("ask_why", {}))


async def test_a_message_with_its_id_counts_once_and_a_session_continues(serve: Serve) -> None:
    """A client that lost a result sends the message again; another person's ID is another one."""
    async with (
        serve(Agent(name="asker", model=FunctionModel(ask_once), tools=[LongRunningFunctionTool(ask_why)])) as env,
        site_of(env.client) as web,
        connected(web.url, person=Person(accepts(result="Because."))) as client,
    ):
        start = {"agent": "asker", "message": "Ask.", "message_id": env.client.task_queue}
        started = [(await client.call_tool("agent_start", start)).structured_content for _ in range(2)]
        assert started[0]["invocation_id"] == started[1]["invocation_id"]
        message = {"message": "Ask.", "session": env.client.task_queue, "message_id": "m-1"}
        first = await client.call_tool("asker", message)
        assert (text_of(first), first.structured_content["status"]) == ("Because.", "completed")
        again = await client.call_tool("asker", message)
        assert again.structured_content["invocation_id"] == first.structured_content["invocation_id"]
        await client.call_tool("agent_cancel", {"invocation_id": started[0]["invocation_id"]})
