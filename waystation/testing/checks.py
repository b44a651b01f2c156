"""Check that invocations replay, and that their histories match the state of their workflows.

Recorded incidents can be checked in the same way: `test_incidents = keeps_replaying("incidents")` defines a test that
replays every history in a folder. This ensures that later versions of the code can still replay them.
"""

import asyncio
import enum
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from waystation.client import Invocation
from waystation.core.contract import MEMO_PENDING, WORKFLOW, InvocationResult, WorkflowSettings
from waystation.core.errors import ForeignHistory, NotReplayable
from waystation.core.log import Log, is_working
from waystation.core.payload import JsonObject, decode
from waystation.history import read_json_content
from waystation.replay import Recording, divergence_of, replay


class Replays(enum.Enum):
    """How `assert_invocation_holds` replays each history."""

    STRICT = "strict"
    """Replay as in production and in the strict sandbox. The sandbox takes most of the time in a short test."""
    PRODUCTION = "production"
    """Replay as in production."""


async def assert_replays(
    history: WorkflowHistory, converter: DataConverter | None = None, settings: WorkflowSettings | None = None
) -> None:
    """Replay a history as in production and in the strict sandbox, which detects the use of clocks and randomness.

    Pass the `settings` of the worker that recorded the history, or None if it used the defaults.

    Raises:
        NotReplayable: The current code does not do what the history recorded.
    """
    await replay(history, runner=UnsandboxedWorkflowRunner(), converter=converter, settings=settings)
    await _assert_replays_strictly(history, converter, settings)


async def _assert_replays_strictly(
    history: WorkflowHistory, converter: DataConverter | None, settings: WorkflowSettings | None
) -> None:
    divergence = await divergence_of(history, runner=StrictRunner(), converter=converter, settings=settings)
    # Ignore divergent parts, which the first replay has compared. The sandbox reloads workflow code and would not see
    # patches that a test has made.
    if divergence and not divergence.parts:
        raise NotReplayable(f"The history of {history.workflow_id!r} does not replay in the sandbox: {divergence}")


class _ObservingRunner(UnsandboxedWorkflowRunner):
    """Runs workflows without a sandbox, and calls query methods of the latest one, which takes no workflow task."""

    _latest: Any = None

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        self._latest = instance = super().create_instance(det)
        return instance

    async def query(self, name: str, *args: object) -> Any:
        return getattr(self._latest.workflow_instance(), name)(*args)


class StrictRunner(SandboxedWorkflowRunner):
    """A workflow sandbox that detects the use of clocks and randomness."""

    _prepared: ClassVar[set[type]] = set()

    def __init__(self) -> None:
        """Share Pydantic with the sandbox, because it is deterministic and importing it again takes a second."""
        super().__init__(
            SandboxRestrictions.default.with_passthrough_modules("pydantic", "pydantic_core", "annotated_types")
        )

    def prepare_workflow(self, defn: Any) -> None:
        """Check only once per class that a workflow loads, because each check takes as long as a replay."""
        if defn.cls not in self._prepared:
            super().prepare_workflow(defn)
            self._prepared.add(defn.cls)


async def assert_projection_matches(invocation: Invocation) -> None:
    """Compare the log from the history with the workflow's responses to queries.

    If they differ while the invocation is running, both are read again until the history has stopped growing.

    Raises:
        AssertionError: The history and the workflow differ.
    """
    log = await invocation.log()
    while difference := await _find_difference(invocation, log, invocation.handle.query):
        later = await invocation.log()
        if later.length == log.length:
            raise AssertionError(difference)
        log = later


async def _find_difference(invocation: Invocation, log: Log, query: Callable[..., Awaitable[Any]]) -> str | None:
    held: list[JsonObject] = []
    before = 0  # number of events in earlier runs, from the ID of this run's first event
    while page := await query("events", before + len(held)):
        before = before if held else int(page[0]["id"].rpartition("/e")[2]) - 1
        held.extend(page)
    if not held and len(await invocation.histories()) > 1:
        before = len(log.state.events)  # the last run has not recorded any event
    recorded = [event.to_json() for event in log.state.events[before:]]
    if recorded != held:
        return _describe_difference(recorded, held)
    state = await query("state")
    if log.state.session.values != state:
        return f"state: the history has {log.state.session.values}, the workflow has {state}"
    pending = [call.model_dump(mode="json") for call in log.state.pending()]
    if pending != (waiting := await query("pending")):
        return f"pending: the history has {pending}, the workflow has {waiting}"
    return None


async def assert_invocation_holds(
    invocation: Invocation, *, replays: Replays = Replays.STRICT, settings: WorkflowSettings | None = None
) -> None:
    """Replay all runs of an invocation and of the agents that it called, and compare the logs with the workflows.

    `replays` selects how the histories are replayed. Pass the `settings` of the worker that recorded them, or None if
    it used the defaults. The logs are compared with the replayed workflows. Only if they differ, which may be because
    the last workflow task is not complete, the worker is asked.

    Raises:
        NotReplayable: The current code does not do what the history recorded.
        AssertionError: The history and the workflow differ.
    """
    histories = await invocation.histories()
    runner = _ObservingRunner()
    for history in histories:
        await replay(history, runner=runner, converter=invocation.converter, settings=settings)
        if replays is Replays.STRICT:
            await _assert_replays_strictly(history, invocation.converter, settings)
    if await _find_difference(invocation, await invocation.log(histories[-1]), runner.query):
        await assert_projection_matches(invocation)
    for event in (event for history in histories for event in history.events):
        started = event.child_workflow_execution_started_event_attributes
        if started.workflow_type.name == WORKFLOW:
            child = started.workflow_execution.workflow_id
            await assert_invocation_holds(
                Invocation.from_id(invocation.client, child), replays=replays, settings=settings
            )


def _describe_difference(recorded: list[JsonObject], held: list[JsonObject]) -> str:
    for index, (one, other) in enumerate(zip(recorded, held, strict=False)):
        if one != other:
            return f"event {index}: the history has {one}, the workflow has {other}"
    return f"the history has {len(recorded)} events, the workflow {len(held)}"


def keeps_replaying(
    folder: str | Path, *, store: str | None = None, converter: DataConverter = DataConverter.default
) -> Callable[[Path], None]:
    """Return a pytest test that replays every history in a folder, with one case for each file.

    Args:
        folder: The folder with files written by `waystation history`: an absolute path, or one relative to the test
            file's folder.
        store: The store with large payloads that the files do not contain, as for `--store`. Redacted histories contain
            all payloads.
        converter: The workers' data converter, which is required if a codec has encoded the payloads.

    Raises:
        FileNotFoundError: The folder does not contain a history.
    """
    import pytest

    path = Path(inspect.stack()[1].filename).parent / folder
    files = sorted(path.glob("*.json"))
    if not files:
        raise FileNotFoundError(f"No history in {str(path)!r}. Save one with: waystation history ID > FILE.json")

    @pytest.mark.parametrize("path", files, ids=lambda path: path.stem)
    def check_history(path: Path) -> None:
        """Check that the current code replays the history."""
        problem = None
        try:
            asyncio.run(assert_keeps_replaying(path, store=store, converter=converter))
        except (AssertionError, ForeignHistory) as error:
            problem = str(error)
        if problem:  # raised outside of `except`, so that pytest shows only this failure
            pytest.fail(f"{path.name}: {problem}", pytrace=False)

    return check_history


async def assert_keeps_replaying(
    path: str | Path, *, store: str | None = None, converter: DataConverter = DataConverter.default
) -> None:
    """Replay a history, including all runs and called agents, and compare its log with the recorded result.

    Args:
        path: A file written by `waystation history`.
        store: The store with large payloads that the file does not contain.
        converter: The workers' data converter, which is required if a codec has encoded the payloads.

    Raises:
        AssertionError: The current code does not do what the history recorded, or reads a different result from it.
        ForeignHistory: The file does not contain a history.
    """
    recording = await Recording.read(path, store=store, converter=converter)
    # Replay in the strict sandbox too, because it detects the use of clocks and randomness.
    for runner in (UnsandboxedWorkflowRunner(), StrictRunner()):
        if divergence := await divergence_of(recording, runner=runner):
            raise AssertionError(str(divergence))
    for part in (recording, *recording.below()):
        if problem := next(find_misreadings(part), None):
            raise AssertionError(f"{part.id}: {problem}")


def find_misreadings(recording: Recording) -> Iterator[str]:
    """Yield the differences between the log read from a history and the values that its workflow recorded last."""
    if recording.kind != WORKFLOW:
        return
    log, last = recording.log, recording.histories[-1].events[-1]
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        recorded = InvocationResult.model_validate(
            decode(read_json_content(last.workflow_execution_completed_event_attributes.result.payloads))
        )
        result = log.state.result(recorded.reason)
        for name in ("status", "text", "state_delta", "usage", "output"):
            if name not in recorded.omitted and getattr(result, name) != getattr(recorded, name):
                yield f"the recorded {name} is {getattr(recorded, name)!r}, and is read as {getattr(result, name)!r}"
    listed, pending = _find_listed_calls(recording), [call.function_call_id for call in log.state.pending()]
    if log.state.outcome.ended is None and listed is not None and not is_working(log.state) and pending != listed:
        yield f"the recorded pending calls are {listed}, and are read as {pending}"


def _find_listed_calls(recording: Recording) -> list[str] | None:
    """Return the IDs of the pending calls that the latest run last wrote to its memo, or None if it never wrote any."""
    listed: list[str] | None = None
    for event in recording.histories[-1].events:
        fields = event.workflow_properties_modified_event_attributes.upserted_memo.fields
        if MEMO_PENDING in fields:
            listed = [call["function_call_id"] for call in decode(fields[MEMO_PENDING].data or b"[]") or ()]
    return listed
