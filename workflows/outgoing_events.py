"""Start the delivery of an invocation's events to programs.

Each delivery is a workflow of its own, because it may take days and must outlive the invocation.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import FailureError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from waystation.core import ids
from waystation.core.contract import EVENT_WORKFLOW, TASK_TIMEOUT
from waystation.core.log import Cancel, Fail, Finish, OutgoingEvent, announce
from waystation.workflows.log_writer import LogWriter
from waystation.workflows.ports import now, raw


class OutgoingEvents:
    """The events of one invocation that programs receive."""

    def __init__(self, writer: LogWriter, note_arrival: Callable[[], None]) -> None:
        """`note_arrival` is called whenever a delivery has started, or cannot start."""
        self._writer, self._note_arrival = writer, note_arrival
        self.starting = 0
        """Number of deliveries that have not started."""
        self.announced_end: str | None = None
        """The status of the end that was announced last, unless the invocation has continued since."""
        self._deliveries: list[asyncio.Task[None]] = []

    def send(self) -> None:
        """Start the delivery of the events that are due, in workflows that outlive this one."""
        state = self._writer.log.state
        outgoing, state.outgoing = state.outgoing, []
        for event in outgoing:
            self._writer.note_command()
            self.starting += 1
            self._deliveries.append(asyncio.create_task(self._deliver(event)))

    async def announce_end(self, step: Finish | Fail | Cancel) -> bool:
        """Start the delivery of the invocation's end. Return whether this had to wait for deliveries to start.

        The server drops those that have not started when a run ends. A message that joins in the meantime continues the
        invocation, which then announces its end again.
        """
        status = "failed" if isinstance(step, Fail) else "completed" if isinstance(step, Finish) else "cancelled"
        reason = step.failure.error_type if isinstance(step, Fail) else None
        if self.announced_end != status:  # a cancellation may arrive while the delivery of another end starts
            announce(self._writer.log.state, now(), "ended", "ended", status=status, reason=reason)
            self.announced_end = status
        self.send()
        if not self.starting:
            return False
        await workflow.wait_condition(lambda: not self.starting)
        return True

    async def _deliver(self, event: OutgoingEvent) -> None:
        with suppress(FailureError):  # the outcome does not matter here; after a reset, the delivery may still run
            try:
                delivery = await workflow.start_child_workflow(
                    EVENT_WORKFLOW,
                    raw(event.encode()),
                    id=ids.event_delivery(event.invocation_id, event.key),
                    result_type=RawValue,
                    task_timeout=TASK_TIMEOUT,
                    cancellation_type=ChildWorkflowCancellationType.ABANDON,
                    parent_close_policy=ParentClosePolicy.ABANDON,
                    # Whatever holds the ID, such as the delivery of an end that did not last, loses it.
                    id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING,
                    static_summary=event.event,
                )
            finally:
                self.starting -= 1
                self._note_arrival()
            await delivery
