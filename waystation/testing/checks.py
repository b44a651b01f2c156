"""Check that invocations replay, and that their histories read as what their workflows held.

Kept incidents are checked in the same way: `test_incidents = keeps_replaying("incidents")` is a test with a case for
each history in a folder, which every later version has to repeat.
"""

import asyncio
import enum
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import UnsandboxedWorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from waystation.client import Invocation
from waystation.core import (
    MEMO_PENDING,
    WORKFLOW,
    ForeignHistory,
    InvocationResult,
    JsonObject,
    Log,
    NotReplayable,
    WorkflowSettings,
    decode,
    is_working,
)
from waystation.history import read_content
from waystation.replay import Recording, divergence_of, replay


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
        super().__init__(
            SandboxRestrictions.default.with_passthrough_modules("pydantic", "pydantic_core", "annotated_types")
        )

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
    recorded = [event.to_json() for event in log.state.events[before:]]
    if recorded != held:
        return _first_difference(recorded, held)
    state = await invocation.handle.query("state")
    if log.state.session.values != state:
        return f"state: history says {log.state.session.values}, the workflow holds {state}"
    pending = [call.model_dump(mode="json") for call in log.state.pending()]
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


def keeps_replaying(
    folder: str | Path, *, store: str | None = None, converter: DataConverter = DataConverter.default
) -> Callable[[Path], None]:
    """Return a test of pytest's that replays every history in a folder, one case for each file.

    Args:
        folder: Beside the file with the test, unless it is absolute. Files are such as `waystation history` writes.
        store: Where large payloads are that a file does not hold; redacted ones hold all.
        converter: As the workers', for payloads that a codec has encoded.

    Raises:
        FileNotFoundError: There is no history in the folder.
    """
    import pytest

    where = Path(inspect.stack()[1].filename).parent / folder
    files = sorted(where.glob("*.json"))
    if not files:
        raise FileNotFoundError(f"No history is in {str(where)!r}; keep one with: waystation history ID > FILE.json")

    @pytest.mark.parametrize("path", files, ids=lambda path: path.stem)
    def keeps(path: Path) -> None:
        """What was recorded is what the present code would do."""
        problem = None
        try:
            asyncio.run(assert_keeps_replaying(path, store=store, converter=converter))
        except (AssertionError, ForeignHistory) as error:
            problem = str(error)
        if problem:  # here, so that it is no failure during the handling of another
            pytest.fail(f"{path.name}: {problem}", pytrace=False)

    return keeps


async def assert_keeps_replaying(
    path: str | Path, *, store: str | None = None, converter: DataConverter = DataConverter.default
) -> None:
    """Replay a history, all of its runs and the agents that it called; look whether it reads as it ended, too.

    Args:
        path: A file such as `waystation history` writes.
        store: Where large payloads are that the file does not hold.
        converter: As the workers', for payloads that a codec has encoded.

    Raises:
        AssertionError: The present code would do something else, or would read something else in it; in the words of
            agents.
        ForeignHistory: It is no history.
    """
    recording = await Recording.read(path, store=store, converter=converter)
    # In the strict sandbox as well, which catches clocks and randomness.
    for runner in (UnsandboxedWorkflowRunner(), StrictRunner()):
        if found := await divergence_of(recording, runner=runner):
            raise AssertionError(str(found))
    for each in (recording, *recording.below()):
        if problem := next(misread(each), None):
            raise AssertionError(f"{each.id}: {problem}")


def misread(recording: Recording) -> Iterator[str]:
    """Yield in what the log that is read from a history differs from what its workflow said at its end."""
    if recording.kind != WORKFLOW:
        return
    log, last = recording.log, recording.histories[-1].events[-1]
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        said = InvocationResult.model_validate(
            decode(read_content(last.workflow_execution_completed_event_attributes.result.payloads))
        )
        read = log.state.result(said.reason)
        for name in ("status", "text", "state_delta", "usage", "output"):
            if name not in said.omitted and getattr(read, name) != getattr(said, name):
                yield f"its result has {name} {getattr(said, name)!r}, and is read as {getattr(read, name)!r}"
    posted, waits = _posted(recording), [call.function_call_id for call in log.state.pending()]
    if log.state.outcome.ended is None and posted is not None and not is_working(log.state) and waits != posted:
        yield f"it said that {posted or 'nothing'} waits, and is read as if {waits or 'nothing'} did"


def _posted(recording: Recording) -> list[str] | None:
    """Return which calls the invocation last said were waiting; None when it never said."""
    posted: list[str] | None = None
    for event in recording.histories[-1].events:
        fields = event.workflow_properties_modified_event_attributes.upserted_memo.fields
        if MEMO_PENDING in fields:
            posted = [call["function_call_id"] for call in decode(fields[MEMO_PENDING].data or b"[]") or ()]
    return posted
