"""Agents as tools of MCP clients, driven with the client of the package `mcp`."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.interfaces.mcp_clients import Person, accepts, ask, connected, start_task
from tests.server.web.desk import payer
from tests.server.web.sites import site
from tests.server.workflows.outside import Till
from waystation.extensions import load_interfaces

INTERFACES = load_interfaces(["mcp"])


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
        assert state, waiting.content
        assert (waiting.is_error, state["status"]) == (False, "waiting")
        [call] = state["calls"]
        assert (call["tool"], call["args"], "approve" in call["actions"]) == ("pay", {"amount": 5}, True)
        assert call["link"].startswith(f"{web.url}/approvals/")
        assert state["invocation_id"] in waiting.content[0].text
        answer = {"call_id": call["call_id"], "action": "approve", "digest": call["digest"]}
        assert (await client.call_tool("agent_answer", answer)).structured_content["outcome"] == "accepted"
        ended = await client.call_tool("agent_get", {"invocation_id": state["invocation_id"], "wait_s": 50})
        assert (ended.content[0].text, ended.structured_content["status"], till.paid) == ("Done.", "completed", [5])
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
        assert (result.content[0].text, till.paid) == ("Done.", [5])
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
        while (task := await ask(client, "tasks/get", id))["status"] == "working":
            pass
        first, second = task["inputRequests"]
        await ask(client, "tasks/update", id, input_responses={first: accepts(confirm=True).model_dump()})
        task = await ask(client, "tasks/get", id)
        assert (task["status"], list(task["inputRequests"])) == ("input_required", [second])
        await ask(client, "tasks/update", id, input_responses={second: accepts(confirm=False).model_dump()})
        while (task := await ask(client, "tasks/get", id))["status"] == "working":
            pass
        assert (task["status"], task["result"]["content"][0]["text"], till.paid) == ("completed", "Done.", [5])
