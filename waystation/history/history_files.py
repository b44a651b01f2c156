"""Histories in files.

A file holds the events of one run, as `temporal workflow show -o json` and the Web UI's download, decoded or not, write
them. Earlier runs, and the agents that it called, stand beside it under names that Temporal's own programs pass over.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from waystation.core.errors import ForeignHistory
from waystation.core.payload import JsonObject
from waystation.history.web_ui_download import encode_payloads, is_decoded

EARLIER = "earlierRuns"
"""Each as a file of it alone would be, oldest first."""
CALLED = "calledAgents"
"""The invocations of agents that it called, each as a file of its own would be, in the order of the calls."""
MAX_BYTES = 300_000_000
"""Of a file. A run has at most 50 MB, by the server's limit, which are about 70 MB of JSON."""
_TYPES = frozenset(EventType.values()) - {EventType.EVENT_TYPE_UNSPECIFIED}
REMEDY = "Save one with `waystation history` or `temporal workflow show -o json`, or download it from the Web UI."


@dataclass(frozen=True, slots=True)
class SavedHistory:
    """The histories of one workflow in a file."""

    histories: Sequence[WorkflowHistory]
    """Of its runs, oldest first, as the server has them."""
    called: Sequence["SavedHistory"] = ()


def format_saved_history(saved: SavedHistory) -> JsonObject:
    """Return the JSON of a history file."""
    *earlier, latest = (history.to_json_dict() for history in saved.histories)
    beside = {EARLIER: earlier, CALLED: [format_saved_history(each) for each in saved.called]}
    return {**latest, **{name: held for name, held in beside.items() if held}}


def read_history_file(path: Path) -> SavedHistory:
    """Read a history file.

    Raises:
        ForeignHistory: It has other content.
        OSError: It cannot be read.
    """
    name = repr(str(path))
    if not path.is_file() and path.exists():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise ForeignHistory(f"{name} is {kind}; name a file with a history. {REMEDY}")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ForeignHistory(
            f"{name} is {size / 1e6:,.0f} MB; at most {MAX_BYTES / 1e6:,.0f} MB are read, and the server ends a run "
            "before it has 50 MB. Save the runs one by one, with `temporal workflow show -o json --run-id`."
        )
    data = path.read_bytes()
    try:
        return _saved(json.loads(data), name, path)
    except (ValueError, RecursionError) as error:
        raise ForeignHistory(f"{name} is no history: {_no_json(data, error)}. {REMEDY}") from None


def _no_json(data: bytes, error: Exception) -> str:
    """Return what something is that is no JSON."""
    begin = data[:200].lstrip().lower()
    if not begin:
        return "it is empty"
    if begin.startswith(b"<"):
        return "it is a page of HTML or XML, such as a proxy's error or a login, not JSON"
    if begin.startswith(b"\x1f\x8b"):
        return "it is compressed with gzip; unpack it"
    if begin.startswith((b"{", b"[")):
        at_end = isinstance(error, json.JSONDecodeError) and error.pos >= len(error.doc.rstrip())
        if at_end or not data[-200:].rstrip().endswith((b"}", b"]")):
            return f"it is cut off after {len(data):,} bytes, in the middle of its JSON"
        at = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        return f"it is no JSON that can be read{at}; it is damaged"
    return "it is no JSON"


def _saved(found: Any, name: str, path: Path) -> SavedHistory:
    runs = [*_beside(found, EARLIER), found]
    histories = [_parsed(run, name if len(runs) == 1 else f"{name}, run {n},", path) for n, run in enumerate(runs, 1)]
    called = enumerate(_beside(found, CALLED), 1)
    return SavedHistory(histories, [_saved(each, f"{name}, called agent {number},", path) for number, each in called])


def _beside(found: Any, key: str) -> list[Any]:
    held = found.get(key) if isinstance(found, dict) else None
    return held if isinstance(held, list) else []


def _parsed(found: Any, name: str, path: Path) -> WorkflowHistory:
    found = _answer(found, name)
    events = found.get("events") if isinstance(found, dict) else None
    if not isinstance(events, list) or not events:
        raise ForeignHistory(f"{name} is no history: it has no list of `events`. {REMEDY}")
    try:
        if is_decoded(events):
            found = {"events": encode_payloads(events)}
        history = WorkflowHistory.from_json(_workflow_id(events[0]) or path.stem, found)
    except Exception as error:  # noqa: BLE001  # whatever the protobuf reader meets in a file made by others
        reason = " ".join(str(error).split())[:200]
        raise ForeignHistory(f"{name} is no history: it cannot be read ({reason}). {REMEDY}") from None
    if gap := _gap(history):
        raise ForeignHistory(f"{name} is no history: {gap}. {REMEDY}")
    return history


def _answer(found: Any, name: str) -> Any:
    """Return the history in an answer of the server's HTTP API; anything else as it is."""
    if isinstance(found, list) and found:
        return {"events": found}  # which the Web UI takes for an import, too
    if not isinstance(found, dict) or not isinstance(found.get("history"), dict):
        return found
    if found.get("nextPageToken"):
        raise ForeignHistory(
            f"{name} is the first page of a history: it has a `nextPageToken`, and the rest is missing. {REMEDY}"
        )
    return found["history"]


def _gap(history: WorkflowHistory) -> str | None:
    """Return what a history lacks without which Temporal's replayer would wait for ever, or not know what happened."""
    started = history.events[0].workflow_execution_started_event_attributes
    if not started.workflow_type.name:
        return "its first event is not the workflow's start"
    if not started.original_execution_run_id:
        return "its first event has no `originalExecutionRunId`"
    activities: set[int] = set()
    for number, event in enumerate(history.events, 1):
        if event.event_id != number:
            return f"event {number} is missing, and what is there goes on with {event.event_id}"
        if event.event_type not in _TYPES:
            return f"event {number} has no type that Temporal's SDK here knows; a newer Waystation may"
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            activities.add(number)
        elif (kind := event.WhichOneof("attributes") or "").startswith("activity_task_"):
            scheduled = getattr(event, kind).scheduled_event_id
            if scheduled not in activities:
                return f"event {number} tells of an activity that event {scheduled} did not schedule"
    return None


def _workflow_id(started: Any) -> str | None:
    """Return the workflow's id from its first event; ids of events and of called agents derive from it."""
    attributes = started.get("workflowExecutionStartedEventAttributes") if isinstance(started, dict) else None
    found = attributes.get("workflowId") if isinstance(attributes, dict) else None
    return found if isinstance(found, str) else None
