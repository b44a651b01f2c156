"""Delay workers in tests: they receive workflow tasks one by one, so that one task brings two events, or read late."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType, PendingWorkflowTaskState
from temporalio.client import WorkflowHandle
from temporalio.worker import (
    ActivityInboundInterceptor,
    CustomSlotSupplier,
    ExecuteActivityInput,
    FixedSizeSlotSupplier,
    Interceptor,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    StartChildWorkflowInput,
    WorkerTuner,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from tests.agents import Gate
from tests.steps import wait_until
from waystation.client import Session
from waystation.core.contract import CHILD_ENDED_SIGNAL
from waystation.core.projection import COLLECT
from waystation.history import is_local_activity

T = TypeVar("T")


class Turnstile(CustomSlotSupplier):
    """Lets a worker poll for one workflow task at a time and, once it is closed, only for admitted tasks."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = asyncio.Event()
        self._next.set()
        self._closed = False
        self._polls = False

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the worker."""
        others = FixedSizeSlotSupplier(10)
        tuner = WorkerTuner.create_composite(
            workflow_supplier=self, activity_supplier=others, local_activity_supplier=others, nexus_supplier=others
        )
        return {"tuner": tuner, "max_concurrent_activities": None, "max_concurrent_workflow_task_polls": 1}

    def close(self) -> None:
        """Admit nothing after the poll in flight, which receives one more task."""
        self._closed = True

    def open(self) -> None:
        """Admit everything again."""
        self._closed = False
        self._next.set()

    async def let_in(self, *workflows: WorkflowHandle[Any, Any]) -> None:
        """Admit a task, if one of these workflows has one that no worker has."""
        for handle in workflows:
            task = (await handle.describe()).raw_description.pending_workflow_task
            if not self._polls and task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED:
                self._next.set()

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Wait for the turn of a poll."""
        await self._next.wait()
        self._next.clear()
        self._polls = True
        return SlotPermit()

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Admit nothing without a poll."""
        return None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Record that a poll has received a task."""
        self._polls = False
        if not self._closed:
            self._loop.call_soon_threadsafe(self._next.set)

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Record that a task has finished."""


class HeldReadings(Interceptor):
    """Holds the activities that read invocations for a session, once a test asks for it."""

    def __init__(self) -> None:
        self.gate: Gate | None = None

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `temporalio.worker.Interceptor`."""
        held = self

        class Held(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                if activity.info().activity_type == COLLECT.name and held.gate:
                    await held.gate.passed()
                return await super().execute_activity(input)

        return Held(next)


async def decided(session: Session) -> None:
    """Wait until a session has applied everything that arrived and decided whether the next invocation starts."""

    async def look() -> bool:
        events = (await session.handle.fetch_history()).events
        kinds = [event.event_type for event in events]
        fired = EventType.EVENT_TYPE_TIMER_FIRED
        was_fired = fired in kinds and EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in kinds[kinds.index(fired) :]
        return was_fired or any(map(is_local_activity, events))

    await wait_until(look, "a decision")


class Late(Interceptor):
    """Delays a message from one workflow to another, as on a busy cluster: the `nth` with a name in each run.

    A name is that of a signal, or `start` for the start of an invocation. After the signal `child_ended`, the end of
    the invocation is late. A timer of the server delays it, in the sending workflow.
    """

    def __init__(self, name: str, delay_s: float, *, nth: int = 1) -> None:
        self._name, self._delay_s, self._nth = name, delay_s, nth

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """See `temporalio.worker.Interceptor`."""
        late = self

        class Outbound(WorkflowOutboundInterceptor):
            count = 0

            async def pass_on(self, name: str, send: Callable[[], Awaitable[T]]) -> T:
                self.count += name == late._name
                is_late = name == late._name and self.count == late._nth and late._delay_s > 0
                if is_late and name != CHILD_ENDED_SIGNAL:
                    await workflow.sleep(late._delay_s)
                sent = await send()
                if is_late and name == CHILD_ENDED_SIGNAL:
                    await workflow.sleep(late._delay_s)
                return sent

            async def signal_child_workflow(self, input: Any) -> None:
                await self.pass_on(input.signal, lambda: self.next.signal_child_workflow(input))

            async def signal_external_workflow(self, input: Any) -> None:
                await self.pass_on(input.signal, lambda: self.next.signal_external_workflow(input))

            async def start_child_workflow(self, input: StartChildWorkflowInput) -> Any:
                return await self.pass_on("start", lambda: self.next.start_child_workflow(input))

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound
