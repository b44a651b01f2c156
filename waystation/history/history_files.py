"""Read and write history files, and check that this version can interpret them.

A file contains the events of one run in the JSON format of `temporal workflow show -o json`. Downloads from the Web UI
are also accepted, whether decoded or not. Earlier runs and called agents are stored under extra keys, which Temporal's
tools ignore.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums import v1 as enums
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from waystation.core import ids
from waystation.core.errors import DeletedHistory, ForeignHistory
from waystation.core.payload import JsonObject
from waystation.core.projection import ENGINE_ACTIVITIES
from waystation.history.history_events import (
    WORKFLOWS,
    EventType,
    get_attributes,
    get_time_s,
    get_workflow_type,
    patch_of,
    payloads_of,
    starts_target,
)
from waystation.storage import UNREADABLE, describe_missing_key, is_deleted, is_reference

EARLIER = "earlierRuns"
"""Key of a list of the earlier runs, oldest first. Each item has the format of a separate history file."""
CALLED = "calledAgents"
"""Key of a list of the called agents' invocations, in call order. Each item has the format of a separate file."""
MAX_BYTES = 300_000_000
"""Maximum size of a history file in bytes. A larger file is refused. The server limits a single run to 50 MB, which is
about 70 MB as JSON."""
_TYPES = frozenset(vars(EventType).values()) - {EventType.EVENT_TYPE_UNSPECIFIED}
REMEDY = "Save one with `waystation history` or `temporal workflow show -o json`, or download it from the Web UI."


@dataclass(frozen=True, slots=True)
class SavedHistory:
    """The histories of one workflow and the agents it called, as stored in a file."""

    histories: Sequence[WorkflowHistory]
    """One history per run, oldest first, with the events exactly as the server stores them."""
    called: Sequence["SavedHistory"] = ()


def format_saved_history(saved: SavedHistory) -> JsonObject:
    """Return the JSON content of a history file."""
    *earlier, latest = (history.to_json_dict() for history in saved.histories)
    extra = {EARLIER: earlier, CALLED: [format_saved_history(agent) for agent in saved.called]}
    return {**latest, **{name: value for name, value in extra.items() if value}}


def read_history_file(path: Path) -> SavedHistory:
    """Read a history file.

    Raises:
        ForeignHistory: This is not a regular file, or it is too large or does not contain a complete history.
        OSError: The file cannot be opened or read.
    """
    name = repr(str(path))
    if not path.is_file() and path.exists():
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise ForeignHistory(f"{name} is {kind}, not a history file. {REMEDY}")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ForeignHistory(
            f"{name} is {size / 1e6:,.0f} MB, but a history file can be at most {MAX_BYTES / 1e6:,.0f} MB. "
            "Save each run to its own file with `temporal workflow show -o json --run-id`."
        )
    data = path.read_bytes()
    try:
        return _parse_saved(json.loads(data), name, path)
    except (ValueError, RecursionError) as error:
        raise ForeignHistory(f"{name} is not a history: {_describe_invalid_json(data, error)}. {REMEDY}") from None


def _describe_invalid_json(data: bytes, error: Exception) -> str:
    """Return a description of file content that could not be parsed as JSON."""
    begin = data[:200].lstrip().lower()
    if not begin:
        return "it is empty"
    if begin.startswith(b"<"):
        return "it is HTML or XML, such as a proxy's error or login page, not JSON"
    if begin.startswith(b"\x1f\x8b"):
        return "it is compressed; decompress it with gunzip"
    if begin.startswith((b"{", b"[")):
        at_end = isinstance(error, json.JSONDecodeError) and error.pos >= len(error.doc.rstrip())
        if at_end or not data[-200:].rstrip().endswith((b"}", b"]")):
            return f"its JSON is cut off after {len(data):,} bytes"
        at = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        return f"it is damaged JSON{at}"
    return "it is not JSON"


def _parse_saved(content: Any, name: str, path: Path) -> SavedHistory:
    runs = [*_extra(content, EARLIER), content]
    histories = [
        _parse_run(run, name if len(runs) == 1 else f"{name}, run {n},", path) for n, run in enumerate(runs, 1)
    ]
    called = enumerate(_extra(content, CALLED), 1)
    return SavedHistory(
        histories, [_parse_saved(agent, f"{name}, called agent {number},", path) for number, agent in called]
    )


def _extra(content: Any, key: str) -> list[Any]:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, list) else []


def _parse_run(content: Any, name: str, path: Path) -> WorkflowHistory:
    content = _unwrap(content, name)
    events = content.get("events") if isinstance(content, dict) else None
    if not isinstance(events, list) or not events:
        raise ForeignHistory(f"{name} is not a history: it has no list of `events`. {REMEDY}")
    try:
        if is_decoded(events):
            content = {"events": encode_payloads(events)}
        # Readers derive the IDs of events and called agents from the workflow ID.
        started = events[0].get("workflowExecutionStartedEventAttributes", {})
        history = WorkflowHistory.from_json(str(started.get("workflowId") or path.stem), content)
    except Exception as error:  # noqa: BLE001  # the protobuf reader raises many kinds of errors for invalid files
        reason = " ".join(str(error).split())[:200]
        raise ForeignHistory(f"{name} is not a history: it cannot be read ({reason}). {REMEDY}") from None
    if gap := _describe_gap(history):
        raise ForeignHistory(f"{name} is not a history: {gap}. {REMEDY}")
    return history


def _unwrap(content: Any, name: str) -> Any:
    """Extract the history from a response of the server's HTTP API, or wrap a list of events. Return any other value
    unchanged.

    Raises:
        ForeignHistory: The response is only the first of several pages.
    """
    if isinstance(content, list) and content:
        return {"events": content}  # the Web UI's import also accepts a bare list
    if not isinstance(content, dict) or not isinstance(content.get("history"), dict):
        return content
    if content.get("nextPageToken"):
        raise ForeignHistory(
            f"{name} is only the first page of a history: it has a `nextPageToken`, so more pages exist. {REMEDY}"
        )
    return content["history"]


def _describe_gap(history: WorkflowHistory) -> str | None:
    """Return why a history is incomplete, or None if it is complete.

    Temporal's replayer would hang on an incomplete history.
    """
    started = history.events[0].workflow_execution_started_event_attributes
    if not started.workflow_type.name:
        return "its first event is not the workflow's start"
    if not started.original_execution_run_id:
        return "its first event has no `originalExecutionRunId`"
    activities: set[int] = set()
    for number, event in enumerate(history.events, 1):
        if event.event_id != number:
            return f"event {number} is missing; the next event is {event.event_id}"
        if event.event_type not in _TYPES:
            return f"event {number} has a type unknown to the installed Temporal SDK; update Waystation"
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            activities.add(number)
        elif (kind := event.WhichOneof("attributes") or "").startswith("activity_task_"):
            scheduled = getattr(event, kind).scheduled_event_id
            if scheduled not in activities:
                return f"event {number} belongs to an activity that event {scheduled} did not schedule"
    return None


# In the Web UI's decoded download, each payload contains its decoded value instead of bytes. Its metadata is plain text
# or, in older versions, missing. Encoding the value again reproduces the payload except for whitespace in the JSON.

EVENTS_CHECKED = 50
"""The number of events to check when detecting a decoded download."""
_MAPS = ("fields", "indexedFields")
"""Fields that map names to payloads: the memo, headers and search attributes."""
_SINGLE = ("summary", "details", "encodedAttributes")
"""Fields that contain a single payload."""


def is_decoded(events: Any) -> bool:
    """Return whether events come from the Web UI's decoded download, where plain values replace payloads."""
    return any(not _is_payload(payload) for event in events[:EVENTS_CHECKED] for payload in _payloads_in(event))


def _payloads_in(content: Any) -> Iterator[Any]:
    for name, value in content.items() if isinstance(content, dict) else ():
        if name == "payloads" and isinstance(value, list):
            yield from value
        else:
            yield from _payloads_in(value)


def encode_payloads(value: Any, name: str = "") -> Any:
    """Encode the payloads in decoded events again, so that the events look as they do on the server.

    Args:
        value: The events, or any value inside them.
        name: The name of the field that contains the value.
    """
    match value:
        case list() if name == "payloads":
            return [_encode_payload(item) for item in value]
        case list():
            return [encode_payloads(item) for item in value]
        case dict() if name in _MAPS:
            return {key: _encode_payload(item) for key, item in value.items()}
        case _ if name in _SINGLE and not _holds_payloads(value):
            return _encode_payload(value)
        case dict():
            return {key: encode_payloads(item, key) for key, item in value.items()}
        case _:
            return value


def _holds_payloads(value: Any) -> bool:
    """Return whether a value is a container of payloads, such as the details of a marker, and not a payload itself."""
    return isinstance(value, dict) and not _has_metadata(value) and bool(value)


def _encode_payload(value: Any) -> Any:
    if _is_payload(value):
        return value
    payload = value if _has_metadata(value) else {"metadata": {}, "data": value}
    encoding = str(payload["metadata"].get("encoding") or "json/plain")
    metadata = {name: _base64(str(value)) for name, value in {**payload["metadata"], "encoding": encoding}.items()}
    empty = encoding == "binary/null"
    text = "" if empty else json.dumps(payload.get("data"), ensure_ascii=False, separators=(",", ":"))
    return {**payload, "metadata": metadata, "data": _base64(text)}


def _has_metadata(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("metadata"), dict) and set(value) <= _FIELDS


_FIELDS = {"metadata", "data", "externalPayloads"}


def _is_payload(value: Any) -> bool:
    """Return whether a value is an encoded payload, whose metadata has `anNvbi9wbGFpbg==` instead of `json/plain`."""
    if not _has_metadata(value) or not isinstance(value.get("data", ""), str):
        return False
    try:
        return b"/" in base64.b64decode(str(value["metadata"].get("encoding")), validate=True)
    except ValueError:
        return False


def _base64(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogatepass")).decode()


# The checks below find histories that this version would misread, because an unknown codec encoded them or a newer
# version recorded them.

_MADE_BY_WORKERS = frozenset(
    {
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    }
)
_READABLE = frozenset({b"json/plain", b"json/protobuf", b"binary/null", UNREADABLE["encoding"]})


def check_readable(histories: Sequence[WorkflowHistory], name: str) -> None:
    """Check that this version can interpret histories correctly.

    Args:
        histories: The histories. If the client has a codec, it must already have decoded them.
        name: The file name or workflow ID to use in the error message.

    Raises:
        ForeignHistory: A history belongs to an unknown workflow type, was encoded by an unknown codec, or was recorded
            by a newer version.
        DeletedHistory: The content of a history was deleted.
    """
    for history in histories:
        kind = get_workflow_type(history)
        if kind not in WORKFLOWS:
            known = ", ".join(map(repr, sorted(WORKFLOWS)))
            raise ForeignHistory(f"{name} is a history of {kind!r}. Waystation only reads histories of {known}.")
        if payload := _find_undecoded(history.events):
            if is_deleted(payload):
                left = [_outline_event(event) for history in histories for event in history.events]
                raise DeletedHistory(name, left)
            if problem := describe_missing_key(payload):
                raise ForeignHistory(f"{name} cannot be read: {problem}")
            encoding = payload.metadata.get("encoding", b"").decode(errors="replace") or "nothing"
            raise ForeignHistory(
                f"{name} has payloads encoded as {encoding!r}, so its workers use a payload codec. "
                "Save the decoded history with `temporal workflow show -o json --codec-endpoint URL`, or download it "
                "from the Web UI with a codec server configured. In Python, pass the workers' data converter with "
                "`Recording.read(path, converter=...)`, or pass a client that uses it."
            )
        if feature := next(_find_newer_features(history.events), None):
            raise ForeignHistory(
                f"{name} was recorded by a newer version of Waystation: it contains {feature}, which this version does "
                "not know. Update Waystation to the workers' version or later."
            )


def _outline_event(event: HistoryEvent) -> JsonObject:
    """Describe a history event by what is never encrypted."""
    attributes = get_attributes(event)
    names = [
        attributes.activity_type.name if event.HasField("activity_task_scheduled_event_attributes") else "",
        *(getattr(attributes, name, "") for name in ("activity_id", "timer_id", "signal_name", "workflow_id")),
    ]
    return {
        "event_id": event.event_id,
        "time": get_time_s(event),
        "kind": enums.EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower(),
        "name": " ".join(filter(None, names)),
    }


def _find_undecoded(events: Sequence[HistoryEvent]) -> Payload | None:
    """Return the first payload that requires a codec, or None if no payload requires one.

    Only payloads written by workers are checked, because anyone can send inputs and signals in any encoding. If an
    input is not JSON, the invocation fails, but its history is still valid. If no workflow task has completed yet, the
    input is checked after all, but only for an encoding that looks encrypted or compressed.
    """
    recorded = (event for event in events if event.event_type in _MADE_BY_WORKERS)
    for payload in (item for event in recorded for payloads in payloads_of(event) for item in payloads.payloads):
        encoding = payload.metadata.get("encoding", b"")
        if encoding not in _READABLE and not is_reference(payload):
            return payload
    if any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in events):
        return None
    for payload in events[0].workflow_execution_started_event_attributes.input.payloads:
        encoding = payload.metadata.get("encoding", b"")
        # No worker has written a payload yet, so check whether the input looks encrypted or compressed.
        if encoding.startswith(b"binary/") and encoding not in (b"binary/plain", b"binary/null"):
            return payload
    return None


def _find_newer_features(events: Iterable[HistoryEvent]) -> Iterator[str]:
    """Yield a description of each recorded marker, activity or workflow type that this version does not know."""
    for event in events:
        match event.event_type:
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                marker = patch_of(event)
                if marker and not ids.is_known_mark(marker):
                    yield f"the marker {marker!r}"
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                name = event.activity_task_scheduled_event_attributes.activity_type.name
                if "." not in name and name not in ENGINE_ACTIVITIES and not starts_target(event):
                    yield f"the activity {name!r}"
