"""The floor: the smallest agent loop written by hand on Temporal.

It does what the engine does in the measured scenarios and nothing else: no validation, no state, no events, no
deadlines, no heartbeats, no published pending calls. It runs unsandboxed, with the options of the engine's worker and
on the same event loop, so that tuning makes no difference.

`Findable` also publishes pending calls in two search attributes, without which no approver could find them.

python -m benchmarks.floor ADDRESS      a worker process
"""

import asyncio
import sys
import uuid
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from benchmarks.process import run_until_orphaned
from benchmarks.scenario import APPROVE, FINAL, SYSTEM, Scenario
from waystation.core import SEARCH_PENDING, SEARCH_STATUS, Settings
from waystation.worker import WORKER_OPTIONS

QUEUE = "floor"
STATUS = SearchAttributeKey.for_keyword(SEARCH_STATUS)
PENDING = SearchAttributeKey.for_keyword_list(SEARCH_PENDING)
LIMIT = timedelta(seconds=60)


@activity.defn
async def model(request: dict[str, Any]) -> dict[str, Any]:
    """Reply with the next tool calls, or with the final text."""
    messages = request["messages"]
    scenario = Scenario.of(messages[0]["text"])
    call_count = sum(message["role"] == "assistant" for message in messages)
    if call_count == scenario.steps:
        return {"role": "assistant", "text": FINAL}
    return {
        "role": "assistant",
        "calls": [
            {"id": f"c{call_count}-{i}", "name": scenario.tool, "args": {"size": scenario.size}}
            for i in range(scenario.calls)
        ],
    }


@activity.defn
async def lookup(size: int) -> str:
    """Return `size` bytes."""
    return "r" * size


@activity.defn
async def danger(size: int) -> str:
    """Return `size` bytes; needs an approval."""
    return "r" * size


@workflow.defn
class HandWritten:
    """Call the model and its tools in turns, with the whole conversation in each model call."""

    def __init__(self) -> None:
        self._waits = False
        self._approved = False

    @workflow.run
    async def run(self, text: str) -> str:
        """Return the model's final text."""
        messages: list[dict[str, Any]] = [{"role": "user", "text": text}]
        while True:
            reply = await workflow.execute_activity(
                model, {"system": SYSTEM, "messages": messages}, start_to_close_timeout=LIMIT
            )
            messages.append(reply)
            if "calls" not in reply:
                return str(reply["text"])
            if any(call["name"] == "danger" for call in reply["calls"]):
                self._waits = True
                self._publish("waiting", ["c0-0"])
                await workflow.wait_condition(lambda: self._approved)
                self._publish("running", [])
            results = await asyncio.gather(
                *(
                    workflow.execute_activity(call["name"], call["args"]["size"], start_to_close_timeout=LIMIT)
                    for call in reply["calls"]
                )
            )
            messages += [
                {"role": "tool", "id": call["id"], "text": result}
                for call, result in zip(reply["calls"], results, strict=True)
            ]

    def _publish(self, status: str, pending: list[str]) -> None:
        """Publish the pending call; a subclass does it."""

    @workflow.signal
    def approve(self) -> None:
        """Let the tool run."""
        self._approved = True

    @workflow.query
    def waits(self) -> bool:
        """Return whether a call needs an approval."""
        return self._waits


@workflow.defn
class Findable(HandWritten):
    """The same, with pending calls in search attributes."""

    @workflow.run
    async def run(self, text: str) -> str:
        """Return the model's final text."""
        return await super().run(text)

    def _publish(self, status: str, pending: list[str]) -> None:
        workflow.upsert_search_attributes([STATUS.value_set(status), PENDING.value_set(pending)])


class Floor:
    """Run the scenarios on a hand-written workflow."""

    def __init__(self, client: Client, workflow: type[HandWritten] = HandWritten) -> None:
        self._client, self._workflow = client, workflow.__name__

    async def start(self, scenario: Scenario) -> WorkflowHandle[Any, Any]:
        """Start an invocation."""
        return await self._client.start_workflow(
            self._workflow, scenario.text(), id=f"floor-{uuid.uuid4().hex[:12]}", task_queue=QUEUE
        )

    async def run(self, scenario: Scenario) -> str:
        """Run an invocation to its end; return its id."""
        handle = await self.start(scenario)
        await handle.result()
        return handle.id

    async def start_waiting(self) -> str:
        """Start an invocation, wait until its call is pending, and return its id."""
        handle = await self.start(APPROVE)
        while not await handle.query("waits"):  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.01)
        return handle.id

    async def approve(self, id: str) -> None:
        """Approve and wait for the result."""
        handle = self._client.get_workflow_handle(id)
        await handle.signal("approve")
        await handle.result()

    def replayer(self) -> Replayer:
        """Return a replayer for the histories of this side."""
        return Replayer(workflows=[HandWritten], workflow_runner=UnsandboxedWorkflowRunner())


async def make_worker(address: str) -> Worker:
    """Create the worker."""
    return Worker(
        await Client.connect(address),
        task_queue=QUEUE,
        workflows=[HandWritten, Findable],
        activities=[model, lookup, danger],
        **WORKER_OPTIONS,
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=Settings().concurrent_activities,
    )


if __name__ == "__main__":
    run_until_orphaned(make_worker(sys.argv[1]))
