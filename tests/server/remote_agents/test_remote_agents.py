"""An agent here calls a remote A2A agent, as a tool or as a sub-agent."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from starlette.responses import Response
from temporalio.client import WorkflowFailureError

from tests.fakes.a2a_agent import A2aAgent
from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.agents.remote_a2a_agent import RemoteA2aAgent
from waystation.client import Approvals
from waystation.client.agent_client import Invocation
from waystation.core.errors import InvalidAnswer
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, calls, says
from waystation.tools import AgentTool


def create_billing(remote: A2aAgent, **settings: Any) -> RemoteA2aAgent:
    """Return the remote agent as it is declared here."""
    return RemoteA2aAgent("billing", remote.url, poll_interval=timedelta(seconds=0.05), **settings)


def create_desk(remote: A2aAgent, message: str, **settings: Any) -> Agent:
    """Return an agent that calls the remote agent as a tool."""
    model = ScriptedModel(calls(("billing", {"request": message})), says("Told."))
    return Agent(name="desk", model=model, tools=[AgentTool(create_billing(remote, **settings))])


async def until(look: Callable[[], Any], limit_s: float = 30) -> Any:
    """Poll until the result is true, and return it."""
    async with asyncio.timeout(limit_s):
        while True:
            seen = look()
            if seen := await seen if isinstance(seen, Awaitable) else seen:
                return seen
            await asyncio.sleep(0.02)


async def answer_of(invocation: Invocation) -> JsonObject:
    """Return the response of the invocation's only call."""
    await invocation.result()
    events = (await invocation.log()).state.events
    response: JsonObject
    [response] = [part["response"] for event in events for part in event.function_responses()]
    return response


async def test_a_remote_agent_is_called_as_a_tool(serve: Serve, remote: A2aAgent) -> None:
    """The remote agent receives the request once, and its artifact is the result of the call."""
    remote.gate.set()
    async with serve(create_desk(remote, "work on invoice 7")) as env:
        invocation = await env.client.start("desk", "go")
        assert await answer_of(invocation) == {"result": "Done: work on invoice 7"}
    [message] = remote.messages
    assert message.message_id == f"{invocation.id}/fc-1/fc-1"


@pytest.mark.parametrize("what", ["fail", "reject"])
async def test_a_remote_failure_is_an_error_for_the_model(serve: Serve, remote: A2aAgent, what: str) -> None:
    """The calling agent's model reads the reason."""
    async with serve(create_desk(remote, f"{what} no such invoice")) as env:
        response = await answer_of(await env.client.start("desk", "go"))
    state = {"fail": "failed", "reject": "rejected"}[what]
    assert response == {"result": f"The remote agent reports that the task is {state}. no such invoice"}


async def test_a_conversation_with_a_remote_sub_agent_continues(serve: Serve, remote: A2aAgent) -> None:
    """Each message of the session has the same context, and the remote agent does not receive tool calls."""
    transfer = calls(("transfer_to_agent", {"agent_name": "billing"}))
    desk = Agent(
        name="desk", model=ScriptedModel(says("Which one?"), transfer, transfer), sub_agents=[create_billing(remote)]
    )
    async with serve(desk) as env:
        session = env.client.session(agent="desk", session_id=env.client.task_queue)
        texts = [(await (await session.send(text)).result()).text for text in ("say hello", "the seventh", "say more")]
    assert texts == ["Which one?", "hello\n\n[desk] said:\nWhich one?\n\nthe seventh", "more"]
    first, second = remote.messages
    assert first.context_id == second.context_id
    assert (first.task_id, second.task_id) == ("", "")


async def test_people_answer_the_question_of_a_remote_agent(serve: Serve, remote: A2aAgent) -> None:
    """The answer continues the same task. An interim answer, which would be sent in its place, is refused."""
    remote.gate.set()
    async with serve(create_desk(remote, "ask Which month?")) as env:
        invocation = await env.client.start("desk", "go")
        [call] = await until(lambda: list_pending(env.client.approvals, invocation))
        assert call.args == {"message": "The remote agent 'billing' asks: Which month?"}
        with pytest.raises(InvalidAnswer, match="but not 'progress'"):
            await env.client.approvals.progress(call.approval_id, {"news": "soon"}, wake=True)
        await env.client.invocation(call.invocation_id).respond({"result": "work in May"}, call.function_call_id)
        assert await answer_of(invocation) == {"result": "Done: work in May"}
    first, second = remote.messages
    assert (second.task_id, second.context_id) == (remote.tasks[0], first.context_id)


async def list_pending(approvals: Approvals, invocation: Invocation) -> list[Any]:
    """Return the pending calls of an invocation and its called agents."""
    return [call async for call in approvals.each(below=invocation.id)]


async def test_a_rejected_question_cancels_the_remote_task(serve: Serve, remote: A2aAgent) -> None:
    """The model learns that the task was canceled."""
    async with serve(create_desk(remote, "ask Which month?")) as env:
        invocation = await env.client.start("desk", "go")
        [call] = await until(lambda: list_pending(env.client.approvals, invocation))
        await env.client.invocation(call.invocation_id).reject(call.function_call_id)
        response = await answer_of(invocation)
    assert response == {"result": "The question of the remote agent was not answered, so its task was canceled."}
    assert remote.canceled == remote.tasks


async def test_a_canceled_invocation_cancels_its_remote_task(serve: Serve, remote: A2aAgent) -> None:
    """The remote agent is asked to cancel before the invocation ends."""
    async with serve(create_desk(remote, "work on it")) as env:
        invocation = await env.client.start("desk", "go")
        await until(lambda: "GetTask" in remote.methods)
        await invocation.cancel()
        with pytest.raises(WorkflowFailureError):
            await invocation.result()
    assert remote.canceled == remote.tasks


@pytest.mark.slow
async def test_a_terminated_invocation_cancels_its_remote_task(serve: Serve, remote: A2aAgent) -> None:
    """The wait learns of the end from its next heartbeat."""
    billing = create_billing(remote)
    billing.tools[1].heartbeat_timeout = timedelta(seconds=2)
    async with serve(billing, verify=False) as env:
        invocation = await env.client.start("billing", "work on it")
        await until(lambda: "GetTask" in remote.methods)
        await invocation.handle.terminate()
        await until(lambda: remote.canceled)
    assert remote.canceled == remote.tasks


async def test_a_remote_task_that_waits_for_an_authorization_is_listed_as_held(serve: Serve, remote: A2aAgent) -> None:
    """Operators see the reason, and the call continues without an answer here."""
    async with serve(create_desk(remote, "authorize it")) as env:
        invocation = await env.client.start("desk", "go")
        child = f"{invocation.id}/fc-1"
        await until(lambda: "GetTask" in remote.methods)
        [hold] = await until(lambda: env.client.held.holds(child))
        assert hold["reason"] == "remote_waits"
        remote.gate.set()
        assert await answer_of(invocation) == {"result": "Done: authorize it"}


async def test_a_message_whose_reply_is_lost_is_not_sent_again(serve: Serve, remote: A2aAgent) -> None:
    """Operators are asked what happened, and find the message by its ID."""
    remote.replies["SendMessage"] = lambda _: Response(status_code=502)
    async with serve(create_desk(remote, "work on it")) as env:
        invocation = await env.client.start("desk", "go")
        assert "did not reply" in (await answer_of(invocation))["result"]
        asked = env.client.approvals.each(unknown=True, below=invocation.id)
        [question] = [call async for call in asked]
    assert question.tool == "send_message"
    [message] = remote.messages
    assert message.message_id in question.hint


async def test_a_repeatable_message_is_sent_again_and_counts_once(serve: Serve, remote: A2aAgent) -> None:
    """The remote agent recognizes the message by its ID."""
    remote.gate.set()

    def lose(content: bytes) -> Response:
        remote.replies.clear()
        return Response(status_code=502)

    remote.replies["SendMessage"] = lose
    async with serve(create_desk(remote, "work on it", effect="repeatable")) as env:
        assert await answer_of(await env.client.start("desk", "go")) == {"result": "Done: work on it"}
    assert len(remote.messages) == 2
    assert len(remote.tasks) == 1
