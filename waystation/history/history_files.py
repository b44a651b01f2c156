"""Histories in files, and whether this version can read them.

A file holds the events of one run, as `temporal workflow show -o json` and the Web UI's download, decoded or not, write
them. Earlier runs, and the agents that it called, stand beside it under names that Temporal's own programs pass over.
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
    signal_not_found,
)
from waystation.history.history_events import EventType, patch_of, payloads_of, type_of
from waystation.storage import UNREADABLE, is_reference

EARLIER = "earlierRuns"
"""Each as a file of it alone would be, oldest first."""
CALLED = "calledAgents"
"""The invocations of agents that it called, each as a file of its own would be, in the order of the calls."""
MAX_BYTES = 300_000_000
"""Of a file. A run has at most 50 MB, by the server's limit, which are about 70 MB of JSON."""
_TYPES = frozenset(vars(EventType).values()) - {EventType.EVENT_TYPE_UNSPECIFIED}
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
        # Ids of events and of called agents derive from the workflow's id.
        started = events[0].get("workflowExecutionStartedEventAttributes", {})
        history = WorkflowHistory.from_json(str(started.get("workflowId") or path.stem), found)
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


# The Web UI's download of a decoded history: in it the value of a payload replaces its bytes, with metadata as text
# beside it or, in older versions, without. It is encoded again; JSON loses nothing but its spaces.

LOOKED_AT = 50
"""How many events decide which shape a file has."""
_MAPS = ("fields", "indexedFields")
"""Where payloads have names: memo, headers, search attributes."""
_ALONE = ("summary", "details", "encodedAttributes")
"""Fields that are one payload."""


def is_decoded(events: Any) -> bool:
    """Whether the events of a file are of that shape: their first ones have plain values where payloads should be."""
    return any(not _is_payload(each) for event in events[:LOOKED_AT] for each in _payloads_in(event))


def _payloads_in(found: Any) -> Iterator[Any]:
    for name, value in found.items() if isinstance(found, dict) else ():
        if name == "payloads" and isinstance(value, list):
            yield from value
        else:
            yield from _payloads_in(value)


def encode_payloads(found: Any, name: str = "") -> Any:
    """Return decoded events as the server has them; `name` is the field that holds the value."""
    match found:
        case list() if name == "payloads":
            return [_payload(each) for each in found]
        case list():
            return [encode_payloads(each) for each in found]
        case dict() if name in _MAPS:
            return {key: _payload(each) for key, each in found.items()}
        case _ if name in _ALONE and not _holds_payloads(found):
            return _payload(found)
        case dict():
            return {key: encode_payloads(value, key) for key, value in found.items()}
        case _:
            return found


def _holds_payloads(value: Any) -> bool:
    """Whether a value is no payload but has some, as the details of a mark and of a failure do."""
    return isinstance(value, dict) and not _has_metadata(value) and bool(value)


def _payload(value: Any) -> Any:
    if _is_payload(value):
        return value
    payload = value if _has_metadata(value) else {"metadata": {}, "data": value}
    encoding = str(payload["metadata"].get("encoding") or "json/plain")
    metadata = {name: _base64(str(held)) for name, held in {**payload["metadata"], "encoding": encoding}.items()}
    empty = encoding == "binary/null"
    text = "" if empty else json.dumps(payload.get("data"), ensure_ascii=False, separators=(",", ":"))
    return {**payload, "metadata": metadata, "data": _base64(text)}


def _has_metadata(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("metadata"), dict) and set(value) <= _FIELDS


_FIELDS = {"metadata", "data", "externalPayloads"}


def _is_payload(value: Any) -> bool:
    """Whether a value is a payload as it was recorded: its encoding, too, is in Base64, which has no hyphens."""
    if not _has_metadata(value) or not isinstance(value.get("data", ""), str):
        return False
    try:
        return b"/" in base64.b64decode(str(value["metadata"].get("encoding")), validate=True)
    except ValueError:
        return False


def _base64(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogatepass")).decode()


# What this version would misread: histories encoded by an unknown codec, or recorded by a newer version.

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
        histories: Decoded by the codec, if there is one.
        name: The file or the id, for the message.

    Raises:
        ForeignHistory: It cannot read them; the message has the remedy.
    """
    for history in histories:
        kind = type_of(history)
        if kind not in WORKFLOWS:
            known = ", ".join(map(repr, sorted(WORKFLOWS)))
            raise ForeignHistory(f"{name} is a history of {kind!r}; Waystation reads those of {known}.")
        if encoding := _encoded(history.events):
            raise ForeignHistory(
                f"{name} has payloads that are encoded as {encoding!r}, so whoever recorded it has a payload codec. "
                "Save it opened, with `temporal workflow show -o json --codec-endpoint URL` or the Web UI's download "
                "with its codec server; or, in Python, give the workers' data converter: "
                "`Recording.read(path, converter=...)`, or a client that has it."
            )
        if found := next(_unknown(history.events), None):
            raise ForeignHistory(
                f"{name} was recorded by a newer version of Waystation: it has {found}, which this version does not "
                "know. Update Waystation here to at least the version of the workers."
            )


def _encoded(events: Sequence[HistoryEvent]) -> str | None:
    """Return how payloads are encoded when that is not as workers without a codec do.

    Of what anybody may have sent, such as the input or a signal, only what workers then made of it tells: an invocation
    whose input is no JSON fails, and its history is one of ours.
    """
    made = (event for event in events if event.event_type in _MADE_BY_WORKERS)
    for payload in (payload for event in made for held in payloads_of(event) for payload in held.payloads):
        encoding = payload.metadata.get("encoding", b"")
        if encoding not in _READABLE and not is_reference(payload):
            return encoding.decode(errors="replace") or "nothing"
    if any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in events):
        return None
    for payload in events[0].workflow_execution_started_event_attributes.input.payloads:
        encoding = payload.metadata.get("encoding", b"")
        # Nobody has taken it up yet. Encrypted or compressed it may well be what is meant.
        if encoding.startswith(b"binary/") and encoding not in (b"binary/plain", b"binary/null"):
            return encoding.decode(errors="replace")
    return None


def _unknown(events: Iterable[HistoryEvent]) -> Iterator[str]:
    """Yield features that only a newer version records."""
    for event in events:
        match event.event_type:
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                mark = patch_of(event)
                if mark and not signal_not_found(mark):
                    yield f"the mark {mark!r}"
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                name = event.activity_task_scheduled_event_attributes.activity_type.name
                if "." not in name and name not in ENGINE_ACTIVITIES:
                    yield f"the activity {name!r}"
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                name = event.start_child_workflow_execution_initiated_event_attributes.workflow_type.name
                if name not in WORKFLOWS:
                    yield f"the workflow {name!r}"
