"""Run invocations whose tools, messages and answers come in a random order, and compare them strictly with their
replays.
"""

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

from waystation.client.agent_client import AgentClient, Invocation
from waystation.core.budget import Budget, Policy
from waystation.core.contract import WORKFLOW
from waystation.core.errors import AnswerRefused, AnswerUnconfirmed
from waystation.core.log import Log, without_digest
from waystation.history import build_log, decode_histories
from waystation.replay import divergence
from waystation.replay.replayer import open_replayer

POLICIES: tuple[Policy | None, ...] = (None, "wrap_up", "stop", "ask")


async def follow_schedule(client: AgentClient, seed: int) -> Invocation:
    """Start an invocation and send it messages at random moments; return it when it has ended."""
    draw = random.Random(seed)
    batch: list[tuple[str, dict[str, Any]]] = [("ask", {})]  # calls of the agent `scheduled`
    batch += [("rest", {"seconds": round(draw.random() * 0.4, 3)}) for _ in range(draw.randint(1, 3))]
    batch += [("glance", {})] * draw.randint(0, 2) + [("helper", {"request": "help"})] * draw.randint(0, 1)
    draw.shuffle(batch)
    policy = POLICIES[seed % len(POLICIES)]
    budget = Budget(max_wall_s=0.2 + draw.random(), on_exhausted=policy) if policy else Budget()
    invocation = await client.start("scheduled", json.dumps([batch, [("rest", {"seconds": 0.05})]]), budget=budget)
    asked = f"fc-{batch.index(('ask', {})) + 1}"

    async def send(action: str, by_signal: bool, delay: float) -> None:
        await asyncio.sleep(delay)
        call_id = "fc-99" if action == "approve" else asked  # there is no such call
        with contextlib.suppress(AnswerRefused, AnswerUnconfirmed):
            await invocation.answer(action, call_id, by="ann", signal=by_signal)  # type: ignore[arg-type]  # drawn

    kinds = [("claim", True), ("claim", False), ("approve", True), ("approve", False), ("approve", False)]
    await asyncio.gather(*(send(*draw.choice(kinds), draw.random()) for _ in range(draw.randint(2, 8))))
    by_signal = draw.random() < 0.25
    while (await invocation.handle.describe()).close_time is None:
        for call in await invocation.pending():
            with contextlib.suppress(AnswerRefused, AnswerUnconfirmed):
                action: Any = "approve" if call.kind == "budget" else "respond"
                response = None if call.kind == "budget" else {"go": True}
                await invocation.answer(action, call.function_call_id, response=response, by="ann", signal=by_signal)
        await asyncio.sleep(0.05)
    return invocation


class _ObservedRunner(UnsandboxedWorkflowRunner):
    """Runs workflows, and keeps the log of the latest one."""

    _latest: WorkflowInstance

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        self._latest = super().create_instance(det)
        return self._latest

    @property
    def entries(self) -> list[tuple[str, float]]:
        return _entries_of(self._latest.workflow_instance()._log)  # type: ignore[attr-defined]  # the SDK's and ours


def _entries_of(log: Log) -> list[tuple[str, float]]:
    """Return references and times, without the cancellation by which the SDK evicts a workflow."""
    return [(str(without_digest(entry.ref)), entry.time) for entry in log.entries if entry.time]


async def assert_same_on_replay(invocation: Invocation) -> None:
    """Replay an invocation and its called agents, whole and cut at the start of each workflow task.

    Commands must have the same attributes, and entries the same order and times, as in the history.
    """
    runner, is_harmless = _ObservedRunner(), divergence._is_harmless
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(divergence, "_is_harmless", lambda *args, updated: is_harmless(*args, updated=False))
        async with open_replayer(runner=runner, converter=invocation.converter) as replays:
            for history in await decode_histories(await invocation.histories(), invocation.converter):
                difference = await replays(history)
                assert difference is None, difference
                whole = runner.entries
                assert _entries_of(build_log([history])) == whole
                for index, event in enumerate(history.events[:-1]):
                    if event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                        continue
                    # The next commands, such as the acceptance of an update, decide which tasks are merged.
                    await replays(WorkflowHistory(history.workflow_id, history.events[: index + 2]))
                    time = event.event_time.ToNanoseconds() / 1e9
                    entries, before = ([entry for entry in log if entry[1] < time] for log in (runner.entries, whole))
                    assert entries == before, f"{entries} before event {event.event_id}, not {before}"
    for event in (event for history in await invocation.histories() for event in history.events):
        started = event.child_workflow_execution_started_event_attributes
        if started.workflow_type.name == WORKFLOW:
            await assert_same_on_replay(Invocation.from_id(invocation.client, started.workflow_execution.workflow_id))
