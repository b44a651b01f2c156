"""How the memory services store memories, and how they split text into searchable words."""

from __future__ import annotations

import abc
import base64
import functools
import itertools
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from waystation.core.errors import InputValidationError, NotJson, StoreFailed
from waystation.core.payload import JsonObject, digest, to_plain_json
from waystation.memory.base_memory_service import BaseMemoryService
from waystation.storage import Owner, decrypt_file, encrypt_file, find_cipher

if TYPE_CHECKING:
    from waystation.events import Event
    from waystation.memory.memory_entry import MemoryEntry
    from waystation.tools.session_view import Session

_ACCENTS = re.compile("[\u0300-\u036f]")


@functools.cache  # compiled on first use, because it takes longer than loading this module
def _spaceless() -> re.Pattern[str]:
    """Match a character of a script that does not put spaces between words. Each such character counts as a word."""
    return re.compile(
        # Thai, Lao, Myanmar, Khmer; kana; Han.
        "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMemory:
    """The stored form of one memory."""

    id: str
    content: JsonObject
    """A genai Content as JSON."""
    author: str | None
    timestamp: str | None
    """The time in ISO 8601 format."""
    custom_metadata: JsonObject
    session_id: str | None = None
    """The ID of the event's session, if known."""

    @classmethod
    def decode(cls, text: str) -> StoredMemory:
        """Return the memory that `encode` converted to text.

        Raises:
            StoreFailed: The memory is encrypted and damaged, or the key is missing.
        """
        stored = json.loads(text)
        if (encrypted := stored.get("encrypted")) is not None:
            try:
                stored = json.loads(decrypt_file(stored["id"], base64.b64decode(encrypted)))
            except ValueError as error:
                raise StoreFailed("a memory", str(error)) from None
        return cls(**stored)

    def encode(self, owner: Owner) -> str:
        """Return this memory as JSON. If encryption is switched on, only its ID and its session are readable."""
        text = json.dumps(asdict(self))
        if find_cipher() is None:
            return text
        encrypted = base64.b64encode(encrypt_file(self.id, text.encode(), owner)).decode()
        return json.dumps({"id": self.id, "session_id": self.session_id, "encrypted": encrypted})

    @property
    def text(self) -> str:
        """The text that searches match, without thoughts."""
        parts = self.content.get("parts") or ()
        return " ".join(part["text"] for part in parts if part.get("text") and not part.get("thought"))

    def entry(self) -> MemoryEntry:
        """Return this memory in its public form."""
        from google.genai.types import Content

        from waystation.memory.memory_entry import MemoryEntry

        return MemoryEntry(
            id=self.id,
            content=Content.model_validate(self.content),
            author=self.author,
            timestamp=self.timestamp,
            custom_metadata=self.custom_metadata,
        )


class StoringMemoryService(BaseMemoryService):
    """Base class of services that store `StoredMemory` objects."""

    @abc.abstractmethod
    async def _add(self, app_name: str, user_id: str, memories: Sequence[StoredMemory]) -> None:
        """Store the memories whose IDs are new for the user. IDs of individually deleted memories are not new."""

    async def add_session_to_memory(self, session: Session) -> None:
        """Store the events of a session that contain text."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store the events that contain text.

        Raises:
            InputValidationError: An event or the metadata cannot be converted to JSON.
        """
        about = _json(custom_metadata or {})
        times = ((event, datetime.fromtimestamp(event.timestamp, UTC).isoformat()) for event in events)
        memories = [_stored(event, time, about, session_id) for event, time in times]
        await self._add(app_name, user_id, [memory for memory in memories if memory.text.strip()])

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store memories that do not come from a session.

        Raises:
            InputValidationError: A memory or the metadata cannot be converted to JSON.
        """
        about = _json(custom_metadata or {})
        entries = [_stored(entry, entry.timestamp, about | _json(entry.custom_metadata)) for entry in memories]
        await self._add(app_name, user_id, entries)


def _stored(
    item: Event | MemoryEntry, timestamp: str | None, metadata: JsonObject, session_id: str | None = None
) -> StoredMemory:
    content = _json(item.content or {})
    return StoredMemory(
        # The same content gets the same ID, so a retried activity does not add it twice.
        id=item.id or f"memory-{digest([content, item.author, item.timestamp])[:32]}",
        content=content,
        author=item.author or None,
        timestamp=timestamp,
        custom_metadata=metadata,
        session_id=session_id,
    )


def _json(value: Any) -> JsonObject:
    """Convert a genai Content, or a dictionary, to plain JSON.

    Raises:
        InputValidationError: It cannot be converted.
    """
    try:
        if hasattr(value, "model_dump"):
            value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        content: JsonObject = to_plain_json(value)
    except (ValueError, NotJson) as error:
        raise InputValidationError(f"A memory cannot be converted to JSON: {error}") from None
    return content


def words_of(text: str) -> set[str]:
    """Return the words in `text`, in lowercase."""
    return {word.lower() for word in re.findall(r"\w+", unicodedata.normalize("NFC", text))}


def searchable_words(text: str) -> set[str]:
    """Return the words in a memory. A word that mixes scripts is also split into its Latin and non-Latin parts."""
    words = words_of(text)
    mixed = [word for word in words if not word.isascii()]
    return words.union("".join(run) for word in mixed for _, run in itertools.groupby(word, _is_latin))


def spaced(text: str) -> str:
    """Add spaces around each character of a script without spaces, because the index splits text at spaces."""
    return _spaceless().sub(r" \g<0> ", unicodedata.normalize("NFC", text))


def runs(text: str) -> Iterator[str]:
    """Yield the words of a text in lowercase, in order. Words contain only letters, digits and combining marks.

    A run of characters from a script without spaces is yielded as one string, with a space between the characters.
    """
    for kind, run in itertools.groupby(unicodedata.normalize("NFC", text), _kind):
        if kind:
            lowered = "".join(run).lower()
            yield " ".join(lowered) if kind == "spaceless" else lowered


def terms(query: str) -> list[str]:
    """Return the unique search terms of a query, in order. A term is one of its `runs`."""
    return list(dict.fromkeys(runs(query)))


def fold(run: str) -> list[str]:
    """Return the words of a run without case and accents."""
    folded = (_ACCENTS.sub("", unicodedata.normalize("NFD", word)).casefold() for word in run.split())
    return [unicodedata.normalize("NFC", word) for word in folded if word]


def list_indexes(owner: str, phrases: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """Return folded phrases in each form in which a search index may contain them, in that of new entries first.

    If encryption is switched on, an index contains digests of the words, which differ for each key and each owner.
    Entries from before contain the words themselves.
    """
    words = [list(phrase) for phrase in phrases]
    cipher = find_cipher()
    return [words] if cipher is None else [*cipher.digest_words(owner, words), words]


def _kind(character: str) -> str:
    if _spaceless().match(character):
        return "spaceless"
    return "word" if unicodedata.category(character)[0] in "LMN" else ""


def _is_latin(character: str) -> bool:
    if character.isascii():
        return character.isalnum() or character == "_"
    return unicodedata.name(character, "").startswith("LATIN")
