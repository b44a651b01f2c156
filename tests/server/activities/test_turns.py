"""A session reads only the new events of its invocations."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client

from tests.server.activities.conftest import Pages
from tests.server.conftest import Serve
from tests.steps import wait_for_calls
from waystation.activities.session_history import TurnReader
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.contract import WORKFLOW
from waystation.core.log import Entry, is_working
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, calls, responses, says
from waystation.tools.long_running_tool import LongRunningFunctionTool


def ask(number: int) -> dict[str, str]:
    """Wait for an answer."""
    return {"status": "asked"}


def act(request: LlmRequest) -> LlmResponse:
    """Call the tool four times, each time after the previous answer."""
    answered = [told for _, told in responses(request) if told.get("status") != "asked"]
    count = len(responses(request)) - len(answered)
    if count:
        return says("I asked.")
    return calls(("ask", {"number": len(answered) + 1})) if len(answered) < 4 else says("done")


@pytest.fixture
async def env(serve: Serve) -> AsyncIterator[AgentEnvironment]:
    """Serve an agent that waits four times."""
    async with serve(Agent(name="asker", model=FunctionModel(act), tools=[LongRunningFunctionTool(ask)])) as env:
        yield env


async def parked(invocation: Invocation, call: str) -> None:
    """Wait until an invocation waits for one call and does nothing else."""
    await wait_for_calls(invocation, call)
    async with asyncio.timeout(20):
        async for log in invocation.follow():
            if [each.id for each in log.state.waiting()] == [call] and not is_working(log.state):
                return


async def entries(invocation: Invocation) -> list[tuple[str, Any]]:
    """Return the entries of a fresh reader."""
    return facts_of((await invocation.log()).entries)


def facts_of(entries: list[Entry]) -> list[tuple[str, Any]]:
    return [(str(entry.ref), entry.body) for entry in entries]


@pytest.mark.slow
async def test_only_new_events_are_read(env: AgentEnvironment, temporal: Client, pages: Pages) -> None:
    """Each time the invocation waits again, only its last events are read."""
    invocation = await env.client.start("asker", "go")
    reader = TurnReader(temporal, invocation.id, env.client.blobs.get)
    for number in range(1, 5):
        await parked(invocation, f"fc-{number}")
        assert facts_of((await reader.log()).entries) == await entries(invocation)
        await invocation.respond({"said": "yes"})
    await invocation.result()
    assert facts_of((await reader.log()).entries) == await entries(invocation)
    assert (pages.cold, pages.tail >= 4) == (1, True)


@pytest.mark.slow
async def test_a_reader_continues_in_later_runs(env: AgentEnvironment, temporal: Client, pages: Pages) -> None:
    """The end of the known run and the next run are read; earlier runs are not read again."""
    params = {"agent": "asker", "message": "go", "cut_after": 20}
    queue = env.client.task_queue
    handle = await env.temporal.start_workflow(WORKFLOW, params, id=f"long-{queue}", task_queue=queue)
    invocation = Invocation(env.client, handle)
    reader = TurnReader(temporal, invocation.id, env.client.blobs.get)
    for number in range(1, 5):
        await parked(invocation, f"fc-{number}")
        assert facts_of((await reader.log()).entries) == await entries(invocation)
        await invocation.respond({"said": "yes"})
    await invocation.result()
    assert facts_of((await reader.log()).entries) == await entries(invocation)
    runs = len(await invocation.histories())
    assert runs > 1
    assert pages.cold == runs


@pytest.mark.slow
async def test_an_invocation_that_was_reset_is_read_anew(env: AgentEnvironment, temporal: Client) -> None:
    """A reset terminates the run, and the reader follows the new one from its earlier point."""
    invocation = await env.client.start("asker", "go")
    reader = TurnReader(temporal, invocation.id, env.client.blobs.get)
    await parked(invocation, "fc-1")
    before = (await reader.log()).entries[1:]
    events = (await invocation.history()).events
    first = next(event for event in events if event.HasField("workflow_task_completed_event_attributes"))
    await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=invocation.id),
            workflow_task_finish_event_id=first.event_id,
            request_id="reset",
        )
    )
    for number in range(1, 5):
        await parked(invocation, f"fc-{number}")
        log = await reader.log()
        assert facts_of(log.entries) == await entries(invocation)
        assert log.entries[1] not in before
        await invocation.respond({"said": "again"})
    await env.client.invocation(invocation.id).result()
    assert facts_of((await reader.log()).entries) == await entries(invocation)
