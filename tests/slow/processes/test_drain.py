"""Workers that are asked to stop let running tools finish, or report the outcome as unknown."""

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
    """Return the number of the completed attempt of each tool call."""
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
    """Twenty sync tools run when the signal arrives; all report, none is started again, and the worker exits with 0."""
    async with place.worker() as worker:
        invocation = await client.start("planned", plan([("work", {"gate": "drained"})] * RUNNING))
        await until(lambda: len(place.ledger.lines("began")) == RUNNING, f"{RUNNING} tools that run")
        worker.send(by)
        await worker.logged("worker.draining")
        worker.send(by)  # a second signal changes nothing
        place.ledger.open("drained")
        assert await worker.exit_code() == 0
    assert worker.life == ["worker.ready", "worker.draining", "worker.stopped"]
    assert worker.other == []
    assert attempts_of_tools(await invocation.history()) == [1] * RUNNING
    assert [line["attempt"] for line in place.ledger.lines("ended")] == [1] * RUNNING


async def test_an_idle_worker_ends_at_once(place: Place) -> None:
    """An idle worker ends at once, because it has nothing to wait for."""
    async with place.worker() as worker:
        assert await worker.stop() == 0
    assert worker.life == ["worker.ready", "worker.draining", "worker.stopped"]


@pytest.mark.parametrize("tool", ["hold_once", "stay_once"])
async def test_a_tool_that_did_not_finish_in_time_is_reported(place: Place, client: AgentClient, tool: str) -> None:
    """A sync or async tool with the effect `once` is not repeated after the drain; the worker still exits."""
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


async def test_a_repeatable_tool_that_did_not_finish_in_time_is_repeated(place: Place, client: AgentClient) -> None:
    """The next worker makes the call again, under the same key and without waiting for a missed heartbeat."""
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


async def test_a_thinking_model_does_not_delay_the_end(place: Place, client: AgentClient) -> None:
    """The next worker repeats a model call that outlasts the drain."""
    async with place.worker("--drain", "0.1") as worker:
        invocation = await client.start("pensive", "think")
        await until(lambda: place.ledger.lines("thinking"), "a model that thinks")
        assert await worker.stop() == 0
    place.ledger.open("thought")
    async with place.worker():
        assert (await invocation.result()).text == "attempt 2"
