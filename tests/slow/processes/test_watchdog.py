"""Workers whose event loop a tool blocks, or that use too much memory, name the cause, drain and exit."""

import asyncio
import json
import signal

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.server.conftest import verify_tree
from tests.server.processes.workers import AGENTS, Place, plan, until
from waystation.client import AgentDirectory
from waystation.client.agent_client import AgentClient
from waystation.core.payload import JsonObject

BLOCKING = ("--agents", str(AGENTS.parent / "blocking_agents"))
LIMIT = (*BLOCKING, "--event-loop-limit", "3")


def model_responses(text: str) -> list[JsonObject]:
    """Return the responses that the model of `blocking` received."""
    return [response for _, response in json.loads(text)]


@pytest.mark.parametrize("tool", ["spin", "doze"])
async def test_a_tool_that_blocks_the_event_loop_is_interrupted_and_named(
    place: Place, client: AgentClient, tool: str
) -> None:
    """The log has the tool and its stack, other tools finish, the worker exits with 11, and the model learns why."""
    async with place.worker(*LIMIT) as worker:
        other = await client.start("blocking", plan([("stay_once", {"gate": "drained"})]))
        await until(lambda: place.ledger.lines("began", key=f"{other.id}/fc-1"), "another tool that runs")
        invocation = await client.start("blocking", plan([(tool, {})]))
        blocked = await worker.logged("event_loop.blocked")
        worker.send(signal.SIGTERM)
        await worker.logged("worker.draining")
        place.ledger.open("drained")
        assert await worker.exit_code() == 11
    assert (blocked["agent"], blocked["tool"], blocked["invocation_id"]) == ("blocking", tool, invocation.id)
    assert any(line.endswith(f" {tool}") for line in blocked["frames"])
    assert [line["tool"] for line in worker.events("event_loop.interrupted")] == [tool]
    async with place.worker(*BLOCKING):
        result, unharmed = await asyncio.gather(invocation.result(), other.result())
        await verify_tree(invocation)
    assert model_responses(result.text) == [
        {
            "error": f"`{tool}` blocked the event loop of its worker for 3 s and was stopped. Whether it took effect "
            "is unknown; it was not repeated.",
            "error_type": "EventLoopBlocked",
        }
    ]
    assert model_responses(unharmed.text) == [{"held": "drained"}]
    assert [line["attempt"] for line in place.ledger.lines("began", key=f"{invocation.id}/fc-1")] == [1]


@pytest.fixture(autouse=True)
async def announced(client: AgentClient) -> None:
    """Announce the agent like an earlier worker, because invocations start when no worker is running."""
    await AgentDirectory(client.temporal).announce({"blocking": {}}, task_queue=client.task_queue)


async def test_a_tool_that_cannot_be_interrupted_costs_two_workers(place: Place, client: AgentClient) -> None:
    """The worker reports the call and exits without draining. After the second attempt, the model learns the reason."""
    invocation = await client.start("blocking", plan([("ignore_signals", {})]))
    for attempt in (1, 2):
        async with place.worker(*BLOCKING, "--event-loop-limit", "1") as worker:
            line = await worker.logged("event_loop.abandoned")
            assert await worker.exit_code() == 11
        assert (line["tool"], line["attempt"]) == ("ignore_signals", attempt)
    async with place.worker(*BLOCKING):
        result = await invocation.result()
        await verify_tree(invocation)
    [response] = model_responses(result.text)
    assert response["error_type"] == "EventLoopBlocked"
    assert response["error"].endswith("unknown; it was tried 2 times and is not repeated again.")
    assert [line["attempt"] for line in place.ledger.lines("began")] == [1, 2]


async def test_a_model_that_blocks_the_event_loop_costs_two_workers(place: Place, client: AgentClient) -> None:
    """A model or a callback is interrupted like a tool. The invocation fails after the second attempt."""
    invocation = await client.start("blocking", "think")
    for _ in (1, 2):
        async with place.worker(*LIMIT) as worker:
            assert (await worker.logged("event_loop.blocked"))["activity"] == "call_model"
            assert await worker.exit_code() == 11
    async with place.worker(*BLOCKING):
        with pytest.raises(WorkflowFailureError) as failed:
            await invocation.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "EventLoopBlocked"
    assert len(place.ledger.lines("thinking")) == 2


async def test_a_worker_that_uses_too_much_memory_drains_and_exits(place: Place, client: AgentClient) -> None:
    """The running tool reports its result first, so nothing is lost."""
    async with place.worker(*BLOCKING, "--max-rss", "400") as worker:
        invocation = await client.start("blocking", plan([("allocate", {"mebibytes": 400})]))
        exceeded = await worker.logged("memory.exceeded")
        assert await worker.exit_code() == 12
    assert exceeded["max_rss_mib"] == 400 < exceeded["rss_mib"]
    assert worker.life == ["worker.ready", "worker.draining", "worker.stopped"]
    async with place.worker(*BLOCKING):
        assert model_responses((await invocation.result()).text) == [{"result": 400}]
