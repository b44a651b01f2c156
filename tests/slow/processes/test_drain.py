"""Workers that are asked to stop: running tools finish, or else the model is told the truth."""

import json
import signal

import pytest
from temporalio.client import WorkflowHistory

from tests.server.conftest import verify_tree
from tests.server.processes.workers import Place, plan, until
from waystation.client.agent_client import AgentClient

RUNNING = 20
UNKNOWN = "Whether it took effect is unknown; it was not repeated."


def attempts_of_tools(history: WorkflowHistory) -> list[int]:
    """Return which attempt of each tool call is the one that completed."""
    started = {event.event_id: event.activity_task_started_event_attributes for event in history.events}
    completed = [event.activity_task_completed_event_attributes for event in history.events]
    tools = [
        event.event_id
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_id.startswith("fc-")
    ]
    return [started[it.started_event_id].attempt for it in completed if it.scheduled_event_id in tools]


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_running_tools_finish_before_the_worker_ends(
    place: Place, client: AgentClient, by: signal.Signals
) -> None:
    """Twenty sync tools run when the signal comes; all report, none is started again, and the worker exits with 0."""
    async with place.worker() as worker:
        invocation = await client.start("planned", plan([("work", {"gate": "drained"})] * RUNNING))
        await until(lambda: len(place.ledger.lines("began")) == RUNNING, f"{RUNNING} tools that run")
        worker.send(by)
        await worker.logged("worker.draining")
        worker.send(by)  # impatience changes nothing
        place.ledger.open("drained")
        assert await worker.exit_code() == 0
    assert worker.life == ["worker.ready", "worker.draining", "worker.stopped"]
    assert worker.other == []
    assert attempts_of_tools(await invocation.history()) == [1] * RUNNING
    assert [line["attempt"] for line in place.ledger.lines("ended")] == [1] * RUNNING


async def test_an_idle_worker_ends_at_once(place: Place) -> None:
    """Nothing runs, so nothing is waited for."""
    async with place.worker() as worker:
        assert await worker.stop() == 0
    assert worker.life == ["worker.ready", "worker.draining", "worker.stopped"]


@pytest.mark.parametrize("tool", ["hold_once", "stay_once"])
async def test_the_model_is_told_of_a_tool_that_did_not_finish_in_time(
    place: Place, client: AgentClient, tool: str
) -> None:
    """What takes effect once is not repeated when the drain is over, be it sync or async; the worker still exits."""
    async with place.worker("--drain", "0.1") as worker:
        invocation = await client.start("planned", plan([(tool, {"gate": "never"})]))
        await until(lambda: place.ledger.lines("began"), "a tool that runs")
        assert await worker.stop() == 0
    assert worker.other == []
    async with place.worker():
        [[_, told]] = json.loads((await invocation.result()).text)
        await verify_tree(invocation)
    assert told == {
        "error": f"The worker stopped while `{tool}` ran. {UNKNOWN}",
        "error_type": "OutcomeUnknown",
    }
    assert [line["attempt"] for line in place.ledger.lines("began")] == [1]


async def test_a_repeatable_tool_that_did_not_finish_in_time_is_started_again(
    place: Place, client: AgentClient
) -> None:
    """The next worker makes the call again, under the same key and without waiting for a heartbeat to be missed."""
    async with place.worker("--drain", "0.1") as worker:
        invocation = await client.start("planned", plan([("work", {"gate": "after"})]))
        await until(lambda: place.ledger.lines("began"), "a tool that runs")
        assert await worker.stop() == 0
    assert [line["count"] for line in worker.events("tools.abandoned")] == [1]
    place.ledger.open("after")
    async with place.worker():
        assert (await invocation.result()).text == '[["work", {"held": "after", "attempt": 2}]]'
        await verify_tree(invocation)
    key = f"{invocation.id}/fc-1"
    assert [line["attempt"] for line in place.ledger.lines("began", key=key)] == [1, 2]


async def test_a_thinking_model_does_not_hold_up_the_end(place: Place, client: AgentClient) -> None:
    """A model call that outlasts the drain is made again by the next worker."""
    async with place.worker("--drain", "0.1") as worker:
        invocation = await client.start("pensive", "think")
        await until(lambda: place.ledger.lines("thinking"), "a model that thinks")
        assert await worker.stop() == 0
    place.ledger.open("thought")
    async with place.worker():
        assert (await invocation.result()).text == "attempt 2"
