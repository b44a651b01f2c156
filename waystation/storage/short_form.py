"""What is shown of a large value where the store that keeps it is not at hand.

It is made when the value is put aside, and stands in the reference: the same JSON with its largest parts cut. So who
reads a history for people reads it as ever.
"""

import itertools
from typing import Any

from waystation.core.payload import decode, encode

ROOM = 2_000
"""About how many bytes a short form has."""
MAX_BYTES = 4 * ROOM
"""A value that does not become as short as this has no short form."""
_LEAST = 64
"""Bytes that a part is worth; of a value with more parts than fit, the first are kept."""
_TEXT = 200
"""Characters of a long text that stay at most: the Web UI shows all of a short form."""
_SHOWN = 12
"""Characters of a digest that tell blobs apart."""


def short_form(data: bytes, digest: str) -> str | None:
    """Return JSON with its largest parts cut; None when it is none, or has too many parts. `digest` is told in it."""
    try:
        text = encode(_Cutting(len(data), digest).cut(decode(data), ROOM))
    except ValueError:
        return None
    return text.decode() if len(text) <= MAX_BYTES else None


def offloaded(size: int, digest: str) -> str:
    """Return what stands for so many bytes."""
    shown = f"{size / 1_000_000:.1f} MB" if size >= 1_000_000 else f"{size / 1_000:.1f} kB"
    return f"[offloaded: {shown}, sha256 {digest[:_SHOWN]}…]"


class _Cutting:
    """Cuts one value. Of what is large it looks at no more than it keeps."""

    def __init__(self, size: int, digest: str) -> None:
        self._size, self._digest = size, digest

    def cut(self, value: Any, room: int) -> Any:
        """Return a value with about `room` bytes."""
        if _size(value, room) <= room:
            return value
        match value:
            case str():
                # The note first: readers clip what they show.
                note = offloaded(len(value.encode()), self._digest)
                begins = value[: min(max(room - len(note) - 2, 0), _TEXT)]
                return f"{note} {begins}…" if begins else note
            case dict():
                named = list(itertools.islice(value.items(), max(room // _LEAST, 1)))
                rooms = _shared([_size(item, room) for _, item in named], room - sum(len(key) + 4 for key, _ in named))
                fields = {key: self.cut(item, each) for (key, item), each in zip(named, rooms, strict=True)}
                left = len(value) - len(fields)
                return {**fields, "…": self._more(left)} if left else fields
            case list():
                first = value[: max(room // _LEAST, 1)]
                rooms = _shared([_size(item, room) + 1 for item in first], room)
                items = [self.cut(item, each) for item, each in zip(first, rooms, strict=True)]
                left = len(value) - len(items)
                more = self._more(left)
                return [*items, {"…": more} if isinstance(value[0], dict) else more] if left else items
            case _:
                return value

    def _more(self, count: int) -> str:
        return f"{count:,} more {offloaded(self._size, self._digest)}"


def _size(value: Any, most: int) -> int:
    """Return about how many bytes a value is as JSON; any number over `most` when it is more than that."""
    match value:
        case str():
            return len(value) if len(value) > most else len(value.encode()) + 2
        case dict() | list():
            size = 2
            for item in value.items() if isinstance(value, dict) else value:
                size += len(item[0]) + 4 + _size(item[1], most) if isinstance(value, dict) else 1 + _size(item, most)
                if size > most:
                    break
            return size
        case _:
            return len(encode(value))


def _shared(sizes: list[int], room: int) -> list[int]:
    """Return how much room each part gets: the small ones all that they need, the large ones equal shares."""
    rooms = [0] * len(sizes)
    for left, index in zip(range(len(sizes), 0, -1), sorted(range(len(sizes)), key=sizes.__getitem__), strict=True):
        rooms[index] = min(sizes[index], max(room, 0) // left)
        room -= rooms[index]
    return rooms
