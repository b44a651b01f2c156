"""A history and a replay agree on workflow tasks without effect, such as those that refused updates leave."""

from collections.abc import Iterable

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from waystation.core.projection import Fact
from waystation.core.projection.facts import Closed, Signalled, TaskCompleted
from waystation.history import HistoryReader

SCHEDULED = EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED


STARTED = EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED


COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


TASK = (SCHEDULED, STARTED, COMPLETED)


SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED


ACCEPTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED


TERMINATED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED


MEMO = EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED


def read(kinds: Iterable[int]) -> list[Fact]:
    """Return the facts that a reader derives from these events. The time of an event is its ID in seconds."""
    events = []
    for number, kind in enumerate(kinds, 1):
        event = HistoryEvent(event_id=number, event_type=kind, event_time=Timestamp(seconds=number))  # type: ignore[arg-type]  # an enum's number
        if kind == SIGNALED:
            event.workflow_execution_signaled_event_attributes.SetInParent()
        if kind == ACCEPTED:
            # Like the server, accept an update before its workflow task is scheduled.
            accepted = event.workflow_execution_update_accepted_event_attributes
            accepted.accepted_request_sequencing_event_id = number - 3
        events.append(event)
    return list(HistoryReader().read(events))


@pytest.mark.parametrize(
    ("kinds", "times"),
    [
        ((*TASK, SIGNALED, *TASK), [2, 6]),
        ((*TASK, *TASK), [5]),
        ((*TASK, *TASK, *TASK, SIGNALED, *TASK), [8, 12]),
        ((*TASK, MEMO, *TASK, *TASK), [2, 6, 9]),
        ((*TASK, MEMO, *TASK, SIGNALED, *TASK, *TASK), [2, 6, 13]),
        ((*TASK, *TASK, ACCEPTED), [2, 5]),
        ((*TASK, *TASK, *TASK, ACCEPTED), [5, 8]),
    ],
    ids=["separate", "empty", "several", "after-a-command", "later", "before-an-update", "several-before-an-update"],
)
def test_an_empty_task_is_merged_with_the_one_that_follows_at_once(kinds: tuple[int, ...], times: list[float]) -> None:
    """An empty task merges with the next one, which sets the time, unless commands or an accepted update precede it."""
    assert [fact.time for fact in read(kinds) if isinstance(fact, TaskCompleted)] == times


@pytest.mark.parametrize(
    ("kinds", "facts"),
    [
        ((*TASK, SCHEDULED, SIGNALED, STARTED, COMPLETED, ACCEPTED), [2, "signal", 6]),
        ((SIGNALED, *TASK, SCHEDULED, SIGNALED, STARTED, COMPLETED, ACCEPTED), ["signal", 3, "signal", 7]),
        ((*TASK, SCHEDULED, SIGNALED, STARTED, COMPLETED, *TASK, ACCEPTED), ["signal", 6, 9]),
        ((*TASK, SCHEDULED, SIGNALED, STARTED, COMPLETED, MEMO), ["signal", 6]),
        ((*TASK, SCHEDULED, SIGNALED, TERMINATED), ["signal", "closed"]),
    ],
    ids=["with-the-update", "before-and-with", "before-a-second", "no-update", "closed"],
)
def test_a_signal_after_an_empty_task_belongs_to_the_task_that_processed_it(
    kinds: tuple[int, ...], facts: list[float | str]
) -> None:
    """A signal has the time of the task that processed it, even if an accepted update separates the empty task."""
    names = {Signalled: "signal", Closed: "closed"}
    found = [fact.time if isinstance(fact, TaskCompleted) else names.get(type(fact)) for fact in read(kinds)]
    assert [fact for fact in found if fact] == facts
