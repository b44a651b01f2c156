"""Histories in files.

A file holds the events of one run, as `temporal workflow show -o json` and the Web UI's download write them. Earlier
runs, and the agents that it called, stand beside it under names that Temporal's own programs pass over.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory

from waystation.core.errors import ForeignHistory
from waystation.core.payload import JsonObject

EARLIER = "earlierRuns"
"""Each as a file of it alone would be, oldest first."""
CALLED = "calledAgents"
"""The invocations of agents that it called, each as a file of its own would be, in the order of the calls."""
_WANTED = (
    "Save one with `waystation history` or `temporal workflow show -o json`, or download it, not decoded, from the "
    "Web UI."
)


@dataclass(frozen=True, slots=True)
class Saved:
    """What a file holds of a workflow."""

    histories: Sequence[WorkflowHistory]
    """Of its runs, oldest first, as the server has them."""
    called: Sequence["Saved"] = ()


def written(saved: Saved) -> JsonObject:
    """Return what a file is to hold."""
    *earlier, latest = (history.to_json_dict() for history in saved.histories)
    beside = {EARLIER: earlier, CALLED: [written(each) for each in saved.called]}
    return {**latest, **{name: held for name, held in beside.items() if held}}


def read(path: Path) -> Saved:
    """Return what a file holds.

    Raises:
        ForeignHistory: It holds something else.
        OSError: It cannot be read.
    """
    name = repr(str(path))
    try:
        found = json.loads(path.read_bytes())
        return _saved(found, name, path)
    except (ValueError, RecursionError):
        raise ForeignHistory(f"{name} is no history: it is no JSON. {_WANTED}") from None


def _saved(found: Any, name: str, path: Path) -> Saved:
    runs = [*_beside(found, EARLIER), found]
    histories = [_parsed(run, name if len(runs) == 1 else f"{name}, run {n},", path) for n, run in enumerate(runs, 1)]
    called = enumerate(_beside(found, CALLED), 1)
    return Saved(histories, [_saved(each, f"{name}, called agent {number},", path) for number, each in called])


def _beside(found: Any, key: str) -> list[Any]:
    held = found.get(key) if isinstance(found, dict) else None
    return held if isinstance(held, list) else []


def _parsed(found: Any, name: str, path: Path) -> WorkflowHistory:
    events = found.get("events") if isinstance(found, dict) else None
    if not isinstance(events, list) or not events:
        raise ForeignHistory(f"{name} is no history: it has no list of `events`. {_WANTED}")
    try:
        history = WorkflowHistory.from_json(_workflow_id(events[0]) or path.stem, found)
    except Exception as error:  # noqa: BLE001  # whatever the protobuf reader meets in a file made by others
        reason = " ".join(str(error).split())[:200]
        raise ForeignHistory(f"{name} is no history: it cannot be read ({reason}). {_WANTED}") from None
    if gap := _gap(history):
        raise ForeignHistory(f"{name} is no history: {gap}. {_WANTED}")
    return history


def _gap(history: WorkflowHistory) -> str | None:
    """Return what a history lacks without which Temporal's replayer would wait for ever."""
    started = history.events[0].workflow_execution_started_event_attributes
    if not started.workflow_type.name:
        return "its first event is not the workflow's start"
    if not started.original_execution_run_id:
        return "its first event has no `originalExecutionRunId`"
    for number, event in enumerate(history.events, 1):
        if event.event_id != number:
            return f"event {number} is missing"
    return None


def _workflow_id(started: Any) -> str | None:
    """Return the workflow's id from its first event; ids of events and of called agents derive from it."""
    attributes = started.get("workflowExecutionStartedEventAttributes") if isinstance(started, dict) else None
    found = attributes.get("workflowId") if isinstance(attributes, dict) else None
    return found if isinstance(found, str) else None
