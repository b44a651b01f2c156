"""What the sides on Temporal have in common: an activity, and a workflow that waits for an approval."""

from datetime import timedelta

from temporalio import activity, workflow

LIMIT = timedelta(seconds=60)


@activity.defn
async def lookup(size: int) -> str:
    """Return `size` bytes."""
    return "r" * size


class WaitsForApproval:
    """A workflow with the signal and the query of `TemporalSide`."""

    def __init__(self) -> None:
        self._pending = False
        self._approved = False

    async def wait_for_approval(self) -> None:
        """Report that a call is pending, and wait until one is approved."""
        self._pending = True
        await workflow.wait_condition(lambda: self._approved)

    @workflow.signal
    def approve(self) -> None:
        """Let the tool run."""
        self._approved = True

    @workflow.query
    def pending(self) -> bool:
        """Return whether a call needs an approval."""
        return self._pending
