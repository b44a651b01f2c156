"""The workflow that is a scope: the state of one user in one app, or of one app.

It only continues as new before its history grows long. The state is the fold of the signals in the history, so readers
read the history.
"""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue

from waystation.core import SCOPE_WORKFLOW, JsonObject, ScopeFold, ScopeSnapshot, decode, prefix_of
from waystation.workflows.ports import NO_ARGUMENT, all_data, data_of, raw

MAX_SIGNALS = 200
"""Signals in one run. A reader without a cache reads them at once: 800 history events, 8 ms."""
MAX_BYTES = 4_000_000
"""Size of the signals in one run."""


# With several arguments, the workflow fails instead of blocking.
@workflow.defn(name=SCOPE_WORKFLOW, sandboxed=False, failure_exception_types=[TypeError])
class AgentScope:
    """State that outlives a session. Signal and query: see the wire contract."""

    # Undecoded, because an argument that does not decode would block the workflow.
    @workflow.init
    def __init__(self, params: RawValue = NO_ARGUMENT) -> None:
        prefix = prefix_of(workflow.info().workflow_id)
        # Only a continued run has state in its input; anybody can start the first one. If this version cannot read the
        # state, the workflow task fails until a worker can.
        carried = workflow.info().continued_run_id is not None
        snapshot = ScopeSnapshot.model_validate(decode(data_of(params.payload))) if carried else None
        self._fold = ScopeFold(prefix, snapshot)
        self._signals = 0
        self._bytes = 0

    @workflow.run
    async def run(self, params: RawValue = NO_ARGUMENT) -> None:
        """Wait for signals, then continue as new."""
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
        """Apply any signal. Invalid deltas count as refused."""
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
        """Return the latest refused deltas with the reasons."""
        return [refused.model_dump() for refused in self._fold.refused]
