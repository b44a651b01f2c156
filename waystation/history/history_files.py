"""History files: read and write them, and check that this version can read them.

A file holds the events of one run, as written by `temporal workflow show -o json` and by the Web UI's download, decoded
or not. Earlier runs and called agents are stored under extra keys, which Temporal's own programs ignore.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from waystation.core import (
    ENGINE_ACTIVITIES,
    SCOPE_WORKFLOW,
    SESSION_WORKFLOW,
    WORKFLOW,
    ForeignHistory,
    JsonObject,
    parse_not_found,
)
from waystation.history.history_events import EventType, get_workflow_type, patch_of, payloads_of
from waystation.storage import UNREADABLE, is_reference

EARLIER = "earlierRuns"
"""Key of the earlier runs, oldest first, each in the form of a file of its own."""
CALLED = "calledAgents"
"""Key of the invocations of called agents, in call order, each in the form of a file of its own."""
MAX_BYTES = 300_000_000
"""Maximum size of a file. The server limits a run to 50 MB, which is about 70 MB of JSON."""
_TYPES = frozenset(vars(EventType).values()) - {EventType.EVENT_TYPE_UNSPECIFIED}
REMEDY = "Save one with `waystation history` or `temporal workflow show -o json`, or download it from the Web UI."


@dataclass(frozen=True, slots=True)
class SavedHistory:
    """The histories of one workflow, as stored in a file."""

    histories: Sequence[WorkflowHistory]
    """One history for each run, oldest first, as the server has it."""
    called: Sequence["SavedHistory"] = ()


def format_saved_history(saved: SavedHistory) -> JsonObject:
    """Return the JSON of a history file."""
    *earlier, latest = (history.to_json_dict() for history in saved.histories)
    extra = {EARLIER: earlier, CALLED: [format_saved_history(agent) for agent in saved.called]}
    return {**latest, **{name: value for name, value in extra.items() if value}}


def read_history_file(path: Path) -> SavedHistory:
    """Read a history file.

    Raises:
        ForeignHistory: The file holds something else.
        OSError: The file cannot be read.
    """
    name = repr(str(path))
    if not path.is_file() and path.exists():
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise ForeignHistory(f"{name} is {kind}, not a history file. {REMEDY}")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ForeignHistory(
            f"{name} is {size / 1e6:,.0f} MB; at most {MAX_BYTES / 1e6:,.0f} MB are read, and the server ends a run "
            "before it has 50 MB. Save the runs one by one, with `temporal workflow show -o json --run-id`."
        )
    data = path.read_bytes()
    try:
        return _parse_saved(json.loads(data), name, path)
    except (ValueError, RecursionError) as error:
        raise ForeignHistory(f"{name} is not a history: {_describe_invalid_json(data, error)}. {REMEDY}") from None


def _describe_invalid_json(data: bytes, error: Exception) -> str:
    """Return what a file holds that is not valid JSON."""
    begin = data[:200].lstrip().lower()
    if not begin:
        return "it is empty"
    if begin.startswith(b"<"):
        return "it is HTML or XML, such as a proxy's error or login page, not JSON"
    if begin.startswith(b"\x1f\x8b"):
        return "it is compressed with gzip; unpack it"
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
        # Ids of events and of called agents derive from the workflow's id.
        started = events[0].get("workflowExecutionStartedEventAttributes", {})
        history = WorkflowHistory.from_json(str(started.get("workflowId") or path.stem), content)
    except Exception as error:  # noqa: BLE001  # the protobuf reader raises many kinds of errors on files made by others
        reason = " ".join(str(error).split())[:200]
        raise ForeignHistory(f"{name} is not a history: it cannot be read ({reason}). {REMEDY}") from None
    if gap := _describe_gap(history):
        raise ForeignHistory(f"{name} is not a history: {gap}. {REMEDY}")
    return history


def _unwrap(content: Any, name: str) -> Any:
    """Return the history inside an answer of the server's HTTP API; any other value unchanged."""
    if isinstance(content, list) and content:
        return {"events": content}  # The Web UI's import accepts a bare list, too.
    if not isinstance(content, dict) or not isinstance(content.get("history"), dict):
        return content
    if content.get("nextPageToken"):
        raise ForeignHistory(
            f"{name} is the first page of a history: it has a `nextPageToken`, and the rest is missing. {REMEDY}"
        )
    return content["history"]


def _describe_gap(history: WorkflowHistory) -> str | None:
    """Return why a history is incomplete. Temporal's replayer would hang on an incomplete one."""
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


# The Web UI's decoded download holds the value of each payload in place of its bytes. Its metadata are plain text or,
# in older versions, missing. Encoding the value again loses only the white space of the JSON.

EVENTS_CHECKED = 50
"""Number of events that are checked to detect a decoded download."""
_MAPS = ("fields", "indexedFields")
"""Fields with named payloads: memo, headers, search attributes."""
_SINGLE = ("summary", "details", "encodedAttributes")
"""Fields that are a single payload."""


def is_decoded(events: Any) -> bool:
    """Whether the events come from the Web UI's decoded download: plain values in place of payloads."""
    return any(not _is_payload(payload) for event in events[:EVENTS_CHECKED] for payload in _payloads_in(event))


def _payloads_in(content: Any) -> Iterator[Any]:
    for name, value in content.items() if isinstance(content, dict) else ():
        if name == "payloads" and isinstance(value, list):
            yield from value
        else:
            yield from _payloads_in(value)


def encode_payloads(value: Any, name: str = "") -> Any:
    """Return decoded events with encoded payloads, as the server has them; `name` is the field that holds the value."""
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
    """Whether a value contains payloads without being one, like the details of a marker or a failure."""
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
    """Whether a value is a payload as recorded. Its encoding is in Base64 too, which has no hyphens."""
    if not _has_metadata(value) or not isinstance(value.get("data", ""), str):
        return False
    try:
        return b"/" in base64.b64decode(str(value["metadata"].get("encoding")), validate=True)
    except ValueError:
        return False


def _base64(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogatepass")).decode()


# Histories that this version would misread: encoded by an unknown codec, or recorded by a newer version.

WORKFLOWS = frozenset({WORKFLOW, SESSION_WORKFLOW, SCOPE_WORKFLOW})
_MADE_BY_WORKERS = frozenset(
    {
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    }
)
_READABLE = frozenset({b"json/plain", b"json/protobuf", b"binary/null", UNREADABLE["encoding"]})


def check_readable(histories: Iterable[WorkflowHistory], name: str) -> None:
    """Check that this version reads histories correctly.

    Args:
        histories: Histories that the codec, if there is one, has decoded.
        name: The file or the id, for the error message.

    Raises:
        ForeignHistory: An unknown codec encoded them, or a newer version recorded them.
    """
    for history in histories:
        kind = get_workflow_type(history)
        if kind not in WORKFLOWS:
            known = ", ".join(map(repr, sorted(WORKFLOWS)))
            raise ForeignHistory(f"{name} is a history of {kind!r}; Waystation reads those of {known}.")
        if encoding := _unknown_encoding(history.events):
            raise ForeignHistory(
                f"{name} has payloads encoded as {encoding!r}, so its workers use a payload codec. "
                "Save it decoded, with `temporal workflow show -o json --codec-endpoint URL` or the Web UI's download "
                "with its codec server. In Python, pass the workers' data converter: "
                "`Recording.read(path, converter=...)`, or a client that has it."
            )
        if feature := next(_find_newer_features(history.events), None):
            raise ForeignHistory(
                f"{name} was recorded by a newer version of Waystation: it has {feature}, which this version does not "
                "know. Update Waystation here to at least the version of the workers."
            )


def _unknown_encoding(events: Sequence[HistoryEvent]) -> str | None:
    """Return the encoding of payloads that need a codec; None if there are none.

    Inputs and signals can come from anybody in any encoding. So only payloads that workers made from them are checked:
    an invocation whose input is not JSON fails, and its history is valid.
    """
    recorded = (event for event in events if event.event_type in _MADE_BY_WORKERS)
    for payload in (item for event in recorded for payloads in payloads_of(event) for item in payloads.payloads):
        encoding = payload.metadata.get("encoding", b"")
        if encoding not in _READABLE and not is_reference(payload):
            return encoding.decode(errors="replace") or "nothing"
    if any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in events):
        return None
    for payload in events[0].workflow_execution_started_event_attributes.input.payloads:
        encoding = payload.metadata.get("encoding", b"")
        # No workflow task has read this input yet, so it may be encrypted or compressed on purpose.
        if encoding.startswith(b"binary/") and encoding not in (b"binary/plain", b"binary/null"):
            return encoding.decode(errors="replace")
    return None


def _find_newer_features(events: Iterable[HistoryEvent]) -> Iterator[str]:
    """Yield features that only a newer version records."""
    for event in events:
        match event.event_type:
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                marker = patch_of(event)
                if marker and not parse_not_found(marker):
                    yield f"the marker {marker!r}"
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                name = event.activity_task_scheduled_event_attributes.activity_type.name
                if "." not in name and name not in ENGINE_ACTIVITIES:
                    yield f"the activity {name!r}"
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                name = event.start_child_workflow_execution_initiated_event_attributes.workflow_type.name
                if name not in WORKFLOWS:
                    yield f"the workflow {name!r}"
