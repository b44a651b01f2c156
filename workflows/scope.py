"""The workflow that is a scope: one user's state in one app, or an app's.

It has nothing to do but to continue as new before its history grows long: the state is the fold of the signals in the
history, so whoever wants it reads that.
"""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue

from waystation.core import SCOPE_WORKFLOW, JsonObject, ScopeFold, ScopeSnapshot, decode, prefix_of
from waystation.workflows.ports import NO_ARGUMENT, all_data, data_of, raw

MAX_SIGNALS = 200
"""A cold reader reads so many at once: 800 events, 8 ms."""
MAX_BYTES = 4_000_000
"""Of signals, in one run."""


# Whoever starts one with several arguments gets a failed workflow, not one that sticks.
@workflow.defn(name=SCOPE_WORKFLOW, sandboxed=False, failure_exception_types=[TypeError])
class AgentScope:
    """State that outlives a conversation. Signal and query: see the wire contract."""

    # It crosses undecoded, since what does not decode would stick the workflow.
    @workflow.init
    def __init__(self, given: RawValue = NO_ARGUMENT) -> None:
        prefix = prefix_of(workflow.info().workflow_id)
        # What a stranger starts a scope with is no state. What a scope carried over is, and a version that cannot read
        # it must not go on without: the workflow task fails until one comes that can.
        carried = workflow.info().continued_run_id is not None
        snapshot = ScopeSnapshot.model_validate(decode(data_of(given.payload))) if carried else None
        self._fold = ScopeFold(prefix, snapshot)
        self._signals = 0
        self._bytes = 0

    @workflow.run
    async def run(self, given: RawValue = NO_ARGUMENT) -> None:
        """Take signals until it is time to continue as new."""
        await workflow.wait_condition(
            lambda: (
                self._signals >= MAX_SIGNALS
                or self._bytes >= MAX_BYTES
                or workflow.info().is_continue_as_new_suggested()
            )
        )
        workflow.continue_as_new(args=[raw(self._fold.snapshot().encode())])

    @workflow.signal(dynamic=True)
    def signalled(self, name: str, values: Sequence[RawValue]) -> None:
        """Take any signal. What is no delta is counted as refused."""
        data = all_data(values)
        self._signals += 1
        self._bytes += sum(map(len, data))
        self._fold.apply(name, data)

    @workflow.query
    def state(self) -> JsonObject:
        """Return the state."""
        return self._fold.state

    @workflow.query
    def refused(self) -> list[JsonObject]:
        """Return what was refused of late, and why."""
        return [refused.model_dump() for refused in self._fold.refused]
