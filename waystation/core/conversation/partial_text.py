"""Unfinished text of model calls: how workers publish it and how readers assemble it.

Nothing here is recorded. A worker publishes a window of the newest text, with its offset, in the heartbeats of its
activity. A reader that polls often sees all of the text; a late reader sees the end of it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from waystation.core.conversation.event import Event
from waystation.core.payload import JsonObject, Recorded

MAX_WINDOW_CHARS = 4_096
"""Size of the window. At ten polls a second, a gap needs a model that writes 40,000 characters a second."""
PARTIAL = "partial_text"
"""Key in the custom metadata of partial events for the position of their text."""

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class PartialText(Recorded):
    """The heartbeat details of a running model call."""

    agent: str
    number: int
    attempt: int
    mark: str = ""
    """Distinguishes attempts, even if an operator reset the activity and their numbers repeat."""
    offset: int
    """Position of `text` in the reply so far, in characters."""
    text: str
    length: int
    """Characters of the reply so far."""


class TextWindow:
    """The newest text of one attempt at one model call. Thoughts are left out."""

    def __init__(self, *, agent: str, number: int, attempt: int, mark: str = "") -> None:
        self.newest = PartialText(agent=agent, number=number, attempt=attempt, mark=mark, offset=0, text="", length=0)

    def add(self, text: str) -> None:
        """Append a piece of text."""
        # Half of a surrogate pair can be neither stored nor displayed.
        newest = _LONE_SURROGATES.sub("\N{REPLACEMENT CHARACTER}", self.newest.text + text)[-MAX_WINDOW_CHARS:]
        length = self.newest.length + len(text)
        self.newest = self.newest.model_copy(update={"text": newest, "length": length, "offset": length - len(newest)})


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of a model call, or the notice that its earlier pieces are void or complete."""

    number: int
    attempt: int
    offset: int
    """Position in the reply, in characters. If text was missed, it is beyond the end of the previous piece."""
    text: str = ""
    void: bool = False
    """Discard the earlier pieces of this call: the attempt failed, and another one may begin."""
    complete: bool = False
    """The recorded event with the whole text follows at once."""

    def event(self, *, invocation_id: str, author: str, branch: str | None, timestamp: float) -> Event:
        """Return the piece as a partial event."""
        facts: JsonObject = {"model_call": self.number, "attempt": self.attempt, "offset": self.offset}
        facts.update({name: True for name in ("void", "complete") if getattr(self, name)})
        return Event(
            id=f"{invocation_id}/m{self.number}.{self.attempt}.{self.offset}{'!' if self.void else ''}",
            invocation_id=invocation_id,
            author=author,
            branch=branch,
            timestamp=timestamp,
            content={"role": "model", "parts": [{"text": self.text}]} if self.text else None,
            partial=True,
            custom_metadata={PARTIAL: facts},
        )


class PartialTexts:
    """The text that one reader has received; yields each piece once."""

    def __init__(self) -> None:
        self._yielded: dict[int, PartialText] = {}

    @property
    def shown(self) -> tuple[int, ...]:
        """Numbers of the model calls whose text was yielded."""
        return tuple(self._yielded)

    def look(self, number: int, attempt: int, heartbeat: PartialText | None) -> Iterator[Piece]:
        """Yield the new text.

        Args:
            number: Number of the model call.
            attempt: The running or next attempt.
            told: The latest heartbeat, possibly of an earlier attempt.
        """
        if heartbeat is not None and (heartbeat.number, heartbeat.attempt) != (number, attempt):
            heartbeat = None
        yielded = self._yielded.get(number)
        if yielded and (
            yielded.attempt != attempt
            or (heartbeat and (heartbeat.mark != yielded.mark or heartbeat.length < yielded.length))
        ):
            yield from self.close(number)
            yielded = None
        end = yielded.length if yielded else 0
        if heartbeat and heartbeat.length > end:
            self._yielded[number] = heartbeat
            start = max(end, heartbeat.offset)
            yield Piece(number, attempt, start, heartbeat.text[start - heartbeat.offset :])

    def close(self, number: int, *, replied: bool = False) -> Iterator[Piece]:
        """Yield the last piece of a call whose text was yielded: complete if its reply is recorded, otherwise void."""
        if yielded := self._yielded.pop(number, None):
            yield Piece(number, yielded.attempt, yielded.length, void=not replied, complete=replied)
