"""Unfinished text of model calls: how workers publish it and how readers assemble it.

None of this is recorded. A worker publishes a window of the newest text and its offset in the heartbeats of the model
activity. A reader that polls often enough sees all of the text; a reader that starts late sees only the end of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import Field

from waystation.core.contract.event import Event
from waystation.core.contract.settings import MIN_HEARTBEAT_INTERVAL
from waystation.core.payload import JsonObject, Recorded, repair_text

MAX_WINDOW_CHARS = 4_096
"""Maximum number of characters in a heartbeat, which contains the end of the text. A reader that polls twice a
second misses text only if the model writes more than 8,000 characters a second."""
TextInterval: TypeAlias = Annotated[float, Field(ge=MIN_HEARTBEAT_INTERVAL.total_seconds())]
"""Minimum interval between heartbeats with new text, in seconds."""
PARTIAL = "partial_text"
"""Key in the custom metadata of partial events. The value holds the model call, the attempt and the text's offset."""


class PartialText(Recorded):
    """The heartbeat details of a running model call."""

    agent: str
    number: int
    attempt: int
    mark: str = ""
    """A value that distinguishes attempts. Attempt numbers alone can repeat, because an operator may reset the
    activity."""
    offset: int
    """Position of `text` in the reply, in characters."""
    text: str
    length: int
    """Number of characters in the reply so far."""
    interval_s: TextInterval | None = None
    """Minimum interval between heartbeats with new text."""


class TextWindow:
    """The newest text produced by one attempt at a model call. Thoughts are left out."""

    def __init__(
        self, *, agent: str, number: int, attempt: int, mark: str = "", interval_s: float | None = None
    ) -> None:
        self.newest = PartialText(
            agent=agent, number=number, attempt=attempt, mark=mark, offset=0, text="", length=0, interval_s=interval_s
        )
        self._half = ""
        """The first half of a surrogate pair, if the text so far ends with it."""

    def add(self, text: str) -> None:
        """Append new text. The halves of a surrogate pair in two texts are joined."""
        text = self._half + text
        self._half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
        text = repair_text(text.removesuffix(self._half))
        newest = (self.newest.text + text)[-MAX_WINDOW_CHARS:]
        length = self.newest.length + len(text)
        self.newest = self.newest.model_copy(update={"text": newest, "length": length, "offset": length - len(newest)})


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of a model call, or a marker that the earlier pieces are void or complete."""

    number: int
    attempt: int
    offset: int
    """Position in the reply, in characters. If the reader missed text, this is past the end of the previous piece."""
    text: str = ""
    void: bool = False
    """Whether to discard the earlier pieces of this call because the attempt failed. Another attempt may follow."""
    complete: bool = False
    """Whether the text is complete. The recorded event with the whole text follows immediately."""

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
    """Tracks the text that one reader has received so far, so that each piece is yielded only once."""

    def __init__(self) -> None:
        self._yielded: dict[int, PartialText] = {}

    @property
    def shown(self) -> tuple[int, ...]:
        """Numbers of the model calls whose text has been yielded, but for which `close` has not been called yet."""
        return tuple(self._yielded)

    def look(self, number: int, attempt: int, heartbeat: PartialText | None) -> Iterator[Piece]:
        """Yield the text in a heartbeat that has not been yielded yet.

        If text of an earlier attempt has been yielded, yield a void piece first.

        Args:
            number: Number of the model call.
            attempt: The attempt that is running or will run next.
            heartbeat: The latest heartbeat, if any. It is ignored if it comes from a different attempt.
        """
        if heartbeat is not None and (heartbeat.number, heartbeat.attempt) != (number, attempt):
            heartbeat = None
        yielded = self._yielded.get(number)
        # The text of one mark only grows, so a shorter one comes from an older heartbeat that was overtaken.
        if yielded and (yielded.attempt != attempt or (heartbeat and heartbeat.mark != yielded.mark)):
            yield from self.close(number)
            yielded = None
        end = yielded.length if yielded else 0
        if heartbeat and heartbeat.length > end:
            self._yielded[number] = heartbeat
            start = max(end, heartbeat.offset)
            yield Piece(number, attempt, start, heartbeat.text[start - heartbeat.offset :])

    def close(self, number: int, *, replied: bool = False) -> Iterator[Piece]:
        """Yield a final piece if text of the call was yielded: complete if its reply is recorded, otherwise void."""
        if yielded := self._yielded.pop(number, None):
            yield Piece(number, yielded.attempt, yielded.length, void=not replied, complete=replied)
