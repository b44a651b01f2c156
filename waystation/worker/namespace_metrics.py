"""Count the open invocations and the pending calls of a namespace, and the tasks that wait in a task queue.

Any process can answer these questions, and all give the same answer. They are therefore separate from the metrics of a
process, which are summed.
"""

import time
from typing import TypeAlias

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from waystation.client import STATUSES, AgentClient
from waystation.core.contract import HELD, RUNNING, UNKNOWN, WORKFLOW
from waystation.worker.metrics import Measurement, Metric

MAX_CALLS = 2_000
"""Maximum number of pending calls to read, newest invocations first."""
MIN_INTERVAL_S = 15.0
"""Minimum time between two counts."""
MAX_SHARE = 0.1
"""Maximum share of the time that is spent counting."""

OPEN = Metric("waystation_open_invocations", "Open invocations in the namespace", ("status",))
PENDING = Metric("waystation_pending_calls", "Calls in the namespace that wait for a person", ("agent", "kind"))
UNKNOWN_OUTCOMES = Metric(
    "waystation_unknown_outcomes", "Calls in the namespace about which it is unknown whether they took effect", ()
)
OLDEST = Metric(
    "waystation_oldest_pending_call_age_seconds", "Time since the oldest pending call was requested", ("agent", "kind")
)
MACHINE_CALLS = Metric(
    "waystation_pending_machine_calls", "Calls in the namespace that wait for a machine", ("agent", "machine")
)
MACHINE_SILENCE = Metric(
    "waystation_machine_silence_seconds",
    "Time since the machine of the call that has been silent for longest was asked or reported progress",
    ("agent", "machine"),
)
IS_COMPLETE = Metric(
    "waystation_pending_calls_complete",
    f"1 if all pending calls are counted, 0 if only the {MAX_CALLS:,} in the newest invocations are",
)
BACKLOG = Metric("waystation_backlog_tasks", "Tasks that wait for a worker, approximately", ("task_queue", "type"))
BACKLOG_AGE = Metric(
    "waystation_backlog_age_seconds", "Time that the oldest of these tasks has waited", ("task_queue", "type")
)
OF_NAMESPACE = (
    OPEN,
    UNKNOWN_OUTCOMES,
    PENDING,
    OLDEST,
    MACHINE_CALLS,
    MACHINE_SILENCE,
    IS_COMPLETE,
    BACKLOG,
    BACKLOG_AGE,
)
_Label: TypeAlias = tuple[Metric, str, str]
"""A metric that counts calls, with the values of its labels."""
_QUEUE_TYPES = {
    "workflows": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    "activities": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
}


class NamespaceMetrics:
    """Counts when asked, and remembers the result for a while, so that frequent scrapes do not load the server."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._counted: list[Measurement] = []
        self._valid_until = 0.0

    async def measure(self) -> list[Measurement]:
        """Return the measurements.

        Raises:
            RPCError: The server does not answer, or the namespace lacks Waystation's search attributes.
        """
        began = time.monotonic()
        if began >= self._valid_until:
            self._counted = [*await self._count_invocations(), *await self._count_calls(), *await self._count_tasks()]
            took_s = time.monotonic() - began
            self._valid_until = time.monotonic() + max(MIN_INTERVAL_S, took_s / MAX_SHARE)
        return self._counted

    async def _count_invocations(self) -> list[Measurement]:
        counts = {}
        for status in (RUNNING, "waiting", HELD, UNKNOWN):
            query = f"WorkflowType = '{WORKFLOW}' AND {STATUSES[status]}"
            counts[status] = (await self._client.temporal.count_workflows(query)).count
        unknown = counts.pop(UNKNOWN)
        measured = [Measurement(OPEN, count, {"status": status}) for status, count in counts.items()]
        return [*measured, Measurement(UNKNOWN_OUTCOMES, unknown, {})]

    async def _count_calls(self) -> list[Measurement]:
        since: dict[_Label, list[float]] = {}
        total, is_complete = 0, True
        async for call in self._client.approvals.each(machines=None):
            if total == MAX_CALLS:
                is_complete = False
                break
            total += 1
            machine = call.machine
            label = (PENDING, call.agent, call.kind) if machine is None else (MACHINE_CALLS, call.agent, machine)
            since.setdefault(label, []).append(call.progress_at or call.requested_at)
        now = time.time()
        measurements = [Measurement(IS_COMPLETE, int(is_complete), {})]
        for (metric, *values), times in since.items():
            labels = dict(zip(metric.labels, values, strict=True))
            age = OLDEST if metric is PENDING else MACHINE_SILENCE
            measurements += [
                Measurement(metric, len(times), labels),
                Measurement(age, max(now - min(times), 0.0), labels),
            ]
        return measurements

    async def _count_tasks(self) -> list[Measurement]:
        temporal, name = self._client.temporal, self._client.task_queue
        measurements = []
        for kind, number in _QUEUE_TYPES.items():
            request = DescribeTaskQueueRequest(
                namespace=temporal.namespace,
                task_queue=TaskQueue(name=name),
                task_queue_type=number,
                report_stats=True,
            )
            stats = (await temporal.workflow_service.describe_task_queue(request)).stats
            labels = {"task_queue": name, "type": kind}
            age_s = stats.approximate_backlog_age.ToTimedelta().total_seconds()
            measurements += [
                Measurement(BACKLOG, stats.approximate_backlog_count, labels),
                Measurement(BACKLOG_AGE, age_s, labels),
            ]
        return measurements
