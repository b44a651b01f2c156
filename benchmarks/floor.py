"""The floor: the smallest agent loop written by hand on Temporal.

It does what the engine does in the measured scenarios and nothing else: no validation, no state, no events, no
deadlines, no heartbeats, no published pending calls. It runs unsandboxed, with the options of the engine's worker and
on the same event loop, so that tuning makes no difference. Its processes import nothing of Waystation.
"""

import asyncio
from datetime import timedelta
from typing import Any

import uvloop
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from benchmarks.side import SLOW_S, SYSTEM, Scenario, TemporalSide
from benchmarks.temporal_parts import LIMIT, WaitsForApproval, lookup

STATUS = SearchAttributeKey.for_keyword("WaystationStatus")
PENDING = SearchAttributeKey.for_keyword_list("WaystationPending")
WORKER_OPTIONS: dict[str, Any] = {
    "max_cached_workflows": 200,
    "sticky_queue_schedule_to_start_timeout": timedelta(seconds=0.8),
    "max_eager_activity_reservations_per_workflow_task": 10,
    "max_concurrent_activities": 100,
}
"""The options of the engine's worker; a test compares them."""


@activity.defn
async def model(request: dict[str, Any]) -> dict[str, Any]:
    """Reply with the next tool calls, or with the final text."""
    messages = request["messages"]
    scenario = Scenario.parse(messages[0]["text"])
    step = sum(message["role"] == "assistant" for message in messages)
    if scenario.model_ms:
        await asyncio.sleep(scenario.model_ms / 1e3)
    if step == scenario.steps:
        return {"role": "assistant", "text": "f" * scenario.final}
    return {
        "role": "assistant",
        "calls": [
            {"id": f"c{step}-{i}", "name": scenario.tool, "args": {"size": scenario.size}}
            for i in range(scenario.calls)
        ],
    }


@activity.defn
async def slow(size: int) -> str:
    """Return `size` bytes after `SLOW_S`."""
    await asyncio.sleep(SLOW_S)
    return "r" * size


@workflow.defn
class HandWritten(WaitsForApproval):
    """Call the model and its tools in turns, with the whole conversation in each model call."""

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
            if (name := reply["calls"][0]["name"]) in ("danger", "published"):
                await self._wait_for_approval(published=name == "published")
            results = await asyncio.gather(
                *(
                    workflow.execute_activity(
                        slow if name == "slow" else lookup, call["args"]["size"], start_to_close_timeout=LIMIT
                    )
                    for call in reply["calls"]
                )
            )
            messages += [
                {"role": "tool", "id": call["id"], "text": result}
                for call, result in zip(reply["calls"], results, strict=True)
            ]

    async def _wait_for_approval(self, *, published: bool) -> None:
        if published:
            workflow.upsert_search_attributes([STATUS.value_set("waiting"), PENDING.value_set(["c0-0"])])
        await self.wait_for_approval()
        if published:
            workflow.upsert_search_attributes([STATUS.value_set("running"), PENDING.value_set([])])

    @workflow.update
    def approve_by_update(self) -> None:
        """Let the tool run, and acknowledge that."""
        self._approved = True


class Floor(TemporalSide):
    """The hand-written workflow. Approvals arrive by signal; those of published calls by update."""

    workflow = "HandWritten"
    run_loop = staticmethod(uvloop.run)

    def make_worker(self, client: Client) -> Worker:
        """Return a worker."""
        return Worker(
            client,
            task_queue=self.queue,
            workflows=[HandWritten],
            activities=[model, lookup, slow],
            workflow_runner=UnsandboxedWorkflowRunner(),
            **WORKER_OPTIONS,
        )

    def replayer(self) -> Replayer:
        """Return a replayer for the histories of this side."""
        return Replayer(workflows=[HandWritten], workflow_runner=UnsandboxedWorkflowRunner())

    async def approve(self, waiting: str, scenario: Scenario) -> str:
        """Approve the pending call, and wait for the result; return the invocation's ID."""
        if scenario.tool != "published":
            return await super().approve(waiting, scenario)
        handle = self.client.get_workflow_handle(waiting)
        await handle.execute_update("approve_by_update")
        await handle.result()
        return waiting


SIDE = Floor
