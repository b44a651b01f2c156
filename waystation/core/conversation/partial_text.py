"""Text of model calls that still run: what a worker tells of it, and how a reader puts it together.

Nothing here is recorded. A worker tells the newest text in the heartbeats of its activity, bounded, with the place
where it begins; so a reader who looks often sees all of it, and one who comes late the end of it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from waystation.core.conversation.event import Event
from waystation.core.payload import JsonObject, Recorded

MAX_WINDOW_CHARS = 4_096
"""How much of the text each heartbeat holds. At ten looks a second a model would have to say 40,000 characters a
second to leave a gap."""
PARTIAL = "partial_text"
"""Under what the custom metadata of partial events says where their text belongs."""

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class PartialText(Recorded):
    """What a worker tells of a model call that still runs: the details of its heartbeats."""

    agent: str
    number: int
    attempt: int
    mark: str = ""
    """Tells attempts apart, also those that an operator's reset of the activity numbers alike."""
    offset: int
    """Where `text` begins in all that the model has said, in characters."""
    text: str
    length: int
    """How many characters the model has said."""


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
    """New text of a model call, or the news that what was shown of it is void or complete."""

    number: int
    attempt: int
    offset: int
    """Where it begins in all that the model has said; more than the end of the piece before where some was missed."""
    text: str = ""
    void: bool = False
    """Nothing that was shown of this call counts: the attempt failed, and another may begin anew."""
    complete: bool = False
    """The recorded event that follows at once has the whole text."""

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
    """What one reader has been shown of the model calls that run; yields each piece of text once."""

    def __init__(self) -> None:
        self._shown: dict[int, PartialText] = {}

    @property
    def shown(self) -> tuple[int, ...]:
        """Numbers of the calls of which some text was shown."""
        return tuple(self._shown)

    def look(self, number: int, attempt: int, told: PartialText | None) -> Iterator[Piece]:
        """Yield what is new.

        Args:
            number: Of the model call.
            attempt: The one that runs, or is about to.
            told: What a worker told last, be it of this attempt or, as long as that is silent, of an earlier one.
        """
        if told is not None and (told.number, told.attempt) != (number, attempt):
            told = None
        shown = self._shown.get(number)
        if shown and (shown.attempt != attempt or (told and (told.mark != shown.mark or told.length < shown.length))):
            yield from self.close(number)
            shown = None
        end = shown.length if shown else 0
        if told and told.length > end:
            self._shown[number] = told
            start = max(end, told.offset)
            yield Piece(number, attempt, start, told.text[start - told.offset :])

    def close(self, number: int, *, replied: bool = False) -> Iterator[Piece]:
        """Yield the last piece of a call whose text was shown: complete when its reply is recorded, otherwise void."""
        if shown := self._shown.pop(number, None):
            yield Piece(number, shown.attempt, shown.length, void=not replied, complete=replied)
