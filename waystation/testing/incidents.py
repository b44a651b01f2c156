"""Incidents that are kept as tests: histories in a folder, which every later version has to repeat.

test_incidents = keeps_replaying("incidents")
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.converter import DataConverter
from temporalio.worker import UnsandboxedWorkflowRunner

from waystation.core.errors import ForeignHistory
from waystation.core.payload import JsonObject, decode
from waystation.core.wire import MEMO_PENDING, WORKFLOW, InvocationResult
from waystation.history import read_content
from waystation.replay.recording import Recording
from waystation.replay.replayer import divergence_of
from waystation.testing.checks import StrictRunner


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
        read = log.result(said.reason)
        for name in ("status", "text", "state_delta", "usage", "output"):
            if name not in said.omitted and getattr(read, name) != getattr(said, name):
                yield f"its result has {name} {getattr(said, name)!r}, and is read as {getattr(read, name)!r}"
    posted, waits = _posted(recording), [call.function_call_id for call in log.pending()]
    if log.ended is None and posted is not None and not log.busy and waits != posted:
        yield f"it said that {posted or 'nothing'} waits, and is read as if {waits or 'nothing'} did"


def _posted(recording: Recording) -> list[str] | None:
    """Return which calls the invocation last said were waiting; None when it never said."""
    posted: list[str] | None = None
    for event in recording.histories[-1].events:
        fields = event.workflow_properties_modified_event_attributes.upserted_memo.fields
        if MEMO_PENDING in fields:
            held: list[JsonObject] | None = decode(fields[MEMO_PENDING].data) if fields[MEMO_PENDING].data else None
            posted = [call["function_call_id"] for call in held or ()]
    return posted
