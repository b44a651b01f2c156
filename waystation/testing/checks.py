"""What has to hold for every invocation: it replays, and its history says what the workflow holds."""

import enum
from typing import Any, ClassVar

from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import UnsandboxedWorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from waystation.client import Invocation
from waystation.core.errors import NotReplayable
from waystation.core.log import Log
from waystation.core.payload import JsonObject
from waystation.core.settings import WorkflowSettings
from waystation.replay import divergence_of, replay


class Replays(enum.Enum):
    """Which replays `assert_invocation_holds` makes of each history."""

    STRICT = "strict"
    """As in production, and in the strict sandbox, which takes most of the time that a short test needs."""
    PRODUCTION = "production"
    """As in production."""
    NONE = "none"
    """For a worker with `max_cached_workflows=0`, which replayed the history so far at each workflow task."""


async def assert_replays(
    history: WorkflowHistory, converter: DataConverter | None = None, settings: WorkflowSettings | None = None
) -> None:
    """Replay a history as in production, and in the strict sandbox, which catches clocks and randomness.

    `settings` are those of the worker that recorded it, when not the default ones.

    Raises:
        NotReplayable: The present code would not do what was recorded.
    """
    await replay(history, runner=UnsandboxedWorkflowRunner(), converter=converter, settings=settings)
    found = await divergence_of(history, runner=StrictRunner(), converter=converter, settings=settings)
    # Particulars were compared above; the sandbox loads workflow code anew, without what a test has changed in it.
    if found and not found.parts:
        raise NotReplayable(f"The history of {history.workflow_id!r} does not replay in the sandbox: {found}")


class StrictRunner(SandboxedWorkflowRunner):
    """The sandbox, which catches clocks and randomness."""

    _prepared: ClassVar[set[type]] = set()

    def __init__(self) -> None:
        """Pydantic is shared: it checks nothing at run time that could differ, and importing it anew takes a second."""
        shared = ("pydantic", "pydantic_core", "annotated_types")
        super().__init__(SandboxRestrictions.default.with_passthrough_modules(*shared))

    def prepare_workflow(self, defn: Any) -> None:
        """Look once whether a workflow loads: each look takes as long as a replay."""
        if defn.cls not in self._prepared:
            super().prepare_workflow(defn)
            self._prepared.add(defn.cls)


async def assert_projection_matches(invocation: Invocation) -> None:
    """Compare what a history says with what the workflow answers to queries.

    Of one that is at work both are read again, as long as it goes on between the two looks.

    Raises:
        AssertionError: They differ.
    """
    log = await invocation.log()
    while difference := await _difference(invocation, log):
        later = await invocation.log()
        if later.length == log.length:
            raise AssertionError(difference)
        log = later


async def _difference(invocation: Invocation, log: Log) -> str | None:
    held: list[JsonObject] = []
    before = 0  # what the workflow has left behind in earlier runs; the number in an event's id says how many events
    while page := await invocation.handle.query("events", before + len(held)):
        before = before if held else int(page[0]["id"].rpartition("/e")[2]) - 1
        held.extend(page)
    recorded = [event.to_json() for event in log.events[before:]]
    if recorded != held:
        return _first_difference(recorded, held)
    state = await invocation.handle.query("state")
    if log.state != state:
        return f"state: history says {log.state}, the workflow holds {state}"
    pending = [call.model_dump(mode="json") for call in log.pending()]
    if pending != (waiting := await invocation.handle.query("pending")):
        return f"pending: history says {pending}, the workflow holds {waiting}"
    return None


async def assert_invocation_holds(
    invocation: Invocation, *, replays: Replays = Replays.STRICT, settings: WorkflowSettings | None = None
) -> None:
    """Replay all runs of an invocation and of those it called, and compare each with what its workflow holds.

    Raises:
        NotReplayable: The present code would not do what was recorded.
        AssertionError: History and workflow differ.
    """
    histories = await invocation.histories()
    for history in histories:
        if replays is Replays.STRICT:
            await assert_replays(history, invocation.converter, settings)
        elif replays is Replays.PRODUCTION:
            await replay(history, runner=UnsandboxedWorkflowRunner(), converter=invocation.converter, settings=settings)
    await assert_projection_matches(invocation)
    for event in (event for history in histories for event in history.events):
        child = event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
        if child:
            await assert_invocation_holds(
                Invocation.from_id(invocation.client, child), replays=replays, settings=settings
            )


def _first_difference(recorded: list[JsonObject], held: list[JsonObject]) -> str:
    for index, (one, other) in enumerate(zip(recorded, held, strict=False)):
        if one != other:
            return f"event {index}: history says {one}, the workflow holds {other}"
    return f"history has {len(recorded)} events, the workflow {len(held)}"
