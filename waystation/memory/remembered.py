"""A memory as it is kept, whatever it was before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from waystation.core.errors import InputValidationError, NotJson
from waystation.core.payload import JsonObject, digest, plain

if TYPE_CHECKING:
    from waystation.core.event import Event
    from waystation.memory.memory_entry import MemoryEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """What is kept of one memory."""

    id: str
    content: JsonObject
    """A genai Content as JSON."""
    author: str | None
    timestamp: str | None
    """ISO 8601."""
    custom_metadata: JsonObject
    session_id: str | None = None
    """In which session it was said, when whoever added it knew."""

    @property
    def text(self) -> str:
        """What it is found by: its visible text."""
        parts = self.content.get("parts") or ()
        return " ".join(part["text"] for part in parts if part.get("text") and not part.get("thought"))

    def entry(self) -> MemoryEntry:
        """Return it as authors see it."""
        from google.genai.types import Content

        from waystation.memory.memory_entry import MemoryEntry

        return MemoryEntry(
            id=self.id,
            content=Content.model_validate(self.content),
            author=self.author,
            timestamp=self.timestamp,
            custom_metadata=self.custom_metadata,
        )


def of_events(
    events: Iterable[Event], metadata: Mapping[str, object] | None = None, *, session_id: str | None = None
) -> list[Remembered]:
    """Return those events of a session that say something, as they are kept.

    Raises:
        InputValidationError: An event, or the metadata, cannot be written as JSON.
    """
    found = []
    for event in events:
        content = _json(event.content)
        if not content or not content.get("parts"):
            continue
        memory = Remembered(
            id=event.id or _id([content, event.author, event.timestamp]),
            content=content,
            author=event.author or None,
            timestamp=datetime.fromtimestamp(event.timestamp, UTC).isoformat(),
            custom_metadata=_json(metadata or {}),
            session_id=session_id,
        )
        if memory.text.strip():
            found.append(memory)
    return found


def of_entries(entries: Sequence[MemoryEntry], metadata: Mapping[str, object] | None = None) -> list[Remembered]:
    """Return memories that an author wrote, as they are kept; one without an id gets one made from what it says.

    Raises:
        InputValidationError: One of them, or the metadata, cannot be written as JSON.
    """
    found = []
    for entry in entries:
        content = _json(entry.content)
        said = Remembered(
            id=entry.id or _id([content, entry.author, entry.timestamp]),
            content=content,
            author=entry.author,
            timestamp=entry.timestamp,
            custom_metadata={**_json(metadata or {}), **_json(entry.custom_metadata)},
        )
        found.append(said)
    return found


def _id(value: list[Any]) -> str:
    # The same text again is the same memory, so that a retried activity adds nothing.
    return f"memory-{digest(value)[:32]}"


def _json(value: Any) -> JsonObject:
    """Return a Content of either form, or a dictionary, as plain JSON."""
    try:
        if hasattr(value, "model_dump"):
            value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        found: JsonObject = plain(value)
    except (ValueError, NotJson) as error:
        raise InputValidationError(f"A memory has to be JSON: {error}") from None
    return found
