"""Entries as bytes: how a stretch of a log travels when the history in which it was born is left behind.

A run that continues as new, and an invocation that reports to its session, hand on entries, not events: from entries
every reader builds the same log, with all that it can answer.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from waystation.core import entry as bodies
from waystation.core.entry import Body, Entry
from waystation.core.errors import ForeignHistory
from waystation.core.payload import JsonObject, Recorded, decode, encode

_KINDS: dict[str, type[Any]] = {
    "began": bodies.Began,
    "refused": bodies.Refused,
    "model_called": bodies.ModelCalled,
    "model_replied": bodies.ModelReplied,
    "model_lost": bodies.ModelLost,
    "call_returned": bodies.CallReturned,
    "child_returned": bodies.ChildReturned,
    "call_lost": bodies.CallLost,
    "answer_counted": bodies.AnswerCounted,
    "answer_ignored": bodies.AnswerIgnored,
    "answer_submitted": bodies.AnswerSubmitted,
    "answer_reviewed": bodies.AnswerReviewed,
    "message_joined": bodies.MessageJoined,
    "deadline_passed": bodies.DeadlinePassed,
    "notice_due": bodies.NoticeDue,
    "notified": bodies.Notified,
    "scopes_told": bodies.ScopesTold,
    "fork_refused": bodies.ForkRefused,
    "cancel_requested": bodies.CancelRequested,
    "ended": bodies.Ended,
}
"""Names under which bodies are recorded; they never change."""
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ADAPTERS: dict[str, TypeAdapter[Body]] = {name: TypeAdapter(kind) for name, kind in _KINDS.items()}


class SegmentRef(Recorded):
    """Where a stretch of a log is kept outside history."""

    digest: str
    """Of the bytes; also their address in the store."""
    size: int
    """In bytes."""
    entries: int
    """How many entries it holds."""


def to_json(entries: Iterable[Entry]) -> list[JsonObject]:
    """Return entries as JSON objects."""
    return [
        {
            "ref": entry.ref,
            "time": entry.time,
            "kind": (kind := _NAMES[type(entry.body)]),
            "body": _ADAPTERS[kind].dump_python(entry.body, mode="json", exclude_defaults=True),
        }
        for entry in entries
    ]


def from_json(objects: Sequence[JsonObject]) -> list[Entry]:
    """Return the entries in such objects.

    Raises:
        ForeignHistory: They are not entries of a log, or of a newer version's.
    """
    try:
        return [
            Entry(given["ref"], given["time"], _ADAPTERS[given["kind"]].validate_python(given["body"]))
            for given in objects
        ]
    except (KeyError, TypeError, ValidationError):
        raise ForeignHistory("A kept stretch of a log cannot be read; it is damaged or a newer version's.") from None


def pack(entries: Iterable[Entry]) -> bytes:
    """Return entries as bytes."""
    return encode(to_json(entries))


def unpack(data: bytes) -> list[Entry]:
    """Return the entries in such bytes.

    Raises:
        ForeignHistory: As for `from_json`.
    """
    try:
        objects = decode(data)
    except ValueError:
        raise ForeignHistory("A kept stretch of a log is not JSON; it is damaged.") from None
    return from_json(objects)
