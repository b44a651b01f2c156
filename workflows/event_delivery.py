"""The workflow that delivers one event of an invocation to the endpoints that want it.

It outlives the invocation, so a slow endpoint delays no result, and a failed delivery is a failed workflow.
"""

import asyncio

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from waystation.core.contract import EVENT_WORKFLOW
from waystation.core.log import NoticeReport, OutgoingEvent
from waystation.core.projection import DELIVER_EVENT
from waystation.workflows.engine_activity import execute_engine_activity
from waystation.workflows.ports import failure_of, input_data, raw


# The input of a first run is an invocation's, or that of anyone who can start workflows. An invalid one fails.
@workflow.defn(name=EVENT_WORKFLOW, sandboxed=False, failure_exception_types=[ValueError, TypeError])
class AgentEventDelivery:
    """The delivery of one event. The wire contract describes its input and its failure."""

    @workflow.run
    async def run(self, params: RawValue) -> RawValue:
        """Deliver the event to all endpoints, and return their names.

        Raises:
            ApplicationError: The event did not reach an endpoint before the time for retries was over, or another
                workflow than its invocation started this one.
        """
        event, parent = OutgoingEvent.model_validate_json(input_data(params)), workflow.info().parent
        # The signature vouches for the event, so only the invocation itself may have it delivered.
        if parent is None or parent.workflow_id != event.invocation_id:
            raise ApplicationError("Only an invocation delivers its events.", type="NotAllowed", non_retryable=True)
        problems = await asyncio.gather(*(_deliver(event, name) for name in event.endpoints))
        if failed := [problem for problem in problems if problem]:
            raise ApplicationError(f"Not delivered to {', '.join(failed)}.", type="NotDelivered", non_retryable=True)
        return raw(NoticeReport(delivered=event.endpoints).encode())


async def _deliver(event: OutgoingEvent, endpoint: str) -> str | None:
    try:
        await execute_engine_activity(
            DELIVER_EVENT, event.model_copy(update={"endpoints": (endpoint,)}), summary=f"deliver to {endpoint}"
        )
    except ActivityError as error:
        failure = failure_of(error)
        return f"{endpoint} ({failure.message or failure.kind})"
    return None
