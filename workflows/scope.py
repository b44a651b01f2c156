"""The workflow for a scope, which holds the state of one user in an app or the state shared by a whole app.

The workflow only collects signals and continues as new before its history grows too long. The state is the result of
applying the signals in the history, so readers compute the state from the history.
"""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue

from waystation.core.payload import JsonObject, decode
from waystation.core.scope_state import SCOPE_WORKFLOW, ScopeFold, ScopeSnapshot, prefix_of
from waystation.workflows.ports import NO_ARGUMENT, all_data, find_key_id, raw, result_of

MAX_SIGNALS = 200
"""Number of signals at which a run continues as new. A reader without a cache has to read all of a run's signals, which
are up to 800 history events and take about 8 ms."""
MAX_BYTES = 4_000_000
"""Total size of signals, in bytes, at which a run continues as new."""


# Treat TypeError as a failure, so that a workflow started with too many arguments fails instead of blocking.
@workflow.defn(name=SCOPE_WORKFLOW, sandboxed=False, failure_exception_types=[TypeError])
class AgentScope:
    """A workflow that holds `user:` or `app:` state, which outlives sessions.

    The wire contract describes its signal and queries.
    """

    # Take the argument undecoded, because an argument that cannot be decoded would block the workflow.
    @workflow.init
    def __init__(self, params: RawValue = NO_ARGUMENT) -> None:
        prefix = prefix_of(workflow.info().workflow_id)
        # Trust state in the input only if this run continues another, because anyone can start a first run. If this
        # version cannot read the state, the workflow task fails until a worker that can read it takes over.
        carried = workflow.info().continued_run_id is not None
        snapshot = ScopeSnapshot.model_validate(decode(result_of(params.payload))) if carried else None
        self._fold = ScopeFold(prefix, snapshot)
        self._signals = 0

    @workflow.run
    async def run(self, params: RawValue = NO_ARGUMENT) -> None:
        """Collect signals until the run reaches one of its limits, then continue as new."""
        await workflow.wait_condition(
            lambda: (
                self._signals >= MAX_SIGNALS
                or self._fold.bytes >= MAX_BYTES
                or workflow.info().is_continue_as_new_suggested()
            )
        )
        workflow.continue_as_new(args=[raw(self._fold.snapshot().encode())])

    @workflow.signal(dynamic=True)
    def signalled(self, name: str, values: Sequence[RawValue]) -> None:
        """Apply a signal with any name. Invalid deltas are refused.

        Raises:
            ResultElsewhere: This worker lacks the key of a delta, which would be lost in the next run. The server
                retries the workflow task until a worker with the key picks it up.
        """
        for value in values:
            if find_key_id(value.payload):
                result_of(value.payload)
        data = all_data(values)
        self._signals += 1
        self._fold.apply(name, data)

    @workflow.query
    def state(self) -> JsonObject:
        """Return the state."""
        return self._fold.state

    @workflow.query
    def refused(self) -> list[JsonObject]:
        """Return the most recently refused deltas and the reasons."""
        return [refused.model_dump() for refused in self._fold.snapshot().refused]
