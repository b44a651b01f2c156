"""What became of a called agent: asked of the server, for a run that did not start it."""

from temporalio import activity
from temporalio.client import Client, WorkflowHistoryEventFilterType
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from waystation.core.continued import ChildInput, ChildOutcome
from waystation.core.entry import Failure
from waystation.history import continued_as, decode_events, outcome_of

MAX_RUNS = 1_000
"""How many runs a child may have had since the look before."""


class ChildWatcher:
    """Carries out the activity `child_outcome`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def outcome(self, given: ChildInput) -> bytes:
        """Return an encoded `ChildOutcome`.

        Raises:
            ApplicationError: The child is still at work; the server has it looked at again.
        """
        run_id = given.run_id
        for _ in range(MAX_RUNS):
            handle = self._client.get_workflow_handle(given.workflow_id, run_id=run_id)
            try:
                found = [
                    event
                    async for event in handle.fetch_history_events(
                        event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT
                    )
                ]
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                failure = Failure(kind="error", error_type="UnknownInvocation", message="Its history is gone.")
                return ChildOutcome(failure=failure).encode()
            (last,) = await decode_events(found[-1:], self._client.data_converter)
            if outcome := outcome_of(last):
                return outcome.encode()
            if (following := continued_as(last)) is None:
                break
            run_id = following
        benign = ApplicationErrorCategory.BENIGN
        raise ApplicationError(f"{activity.info().activity_id} is still at work.", type="StillAtWork", category=benign)
