"""What models were shown, told without saying anything twice.

A prompt mostly repeats the one before it. So of each is told how much of the earlier one of the same agent it begins
with, and what follows; and what follows is named by the event that says it, where one does.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from waystation.core import prompt
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.payload import JsonObject, encode
from waystation.core.work import Work


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a content."""

    content: JsonObject
    event: int | None = None
    """Number of the event that says the same; none for what was put together for the model."""

    def to_json(self) -> JsonObject:
        """Return the event's number, or the part itself."""
        return {"event": self.event} if self.event else {"part": self.content}


@dataclass(frozen=True, slots=True)
class Content:
    """One content of a request."""

    role: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The contents of one request to a model."""

    length: int
    """How many contents there were."""
    like: int | None
    """Number of an earlier call of the same agent's model."""
    same: int
    """With how many of the contents of that call it begins."""
    then: tuple[Content, ...]

    def to_json(self) -> JsonObject:
        """Return how many contents there were, what they begin with, and the others."""
        then = [{"role": each.role, "parts": [part.to_json() for part in each.parts]} for each in self.then]
        begins = {"begins_as": {"model_call": self.like, "contents": self.same}} if self.like and self.same else {}
        return {"contents": self.length, **begins, "then": then}


class Prompts:
    """The prompts of one invocation, in the order in which they were made."""

    def __init__(self) -> None:
        self._events: dict[bytes, int] = {}
        self._last: dict[str, tuple[int, list[JsonObject]]] = {}

    def know(self, number: int, event: Event) -> None:
        """Take note of an event, to which prompts may refer."""
        for part in (event.content or {}).get("parts") or ():
            self._events[_key(part)] = number

    def of(self, number: int, log: Log, work: Work, summary: Event | None) -> Prompt:
        """Return what the model of an agent was shown in call `number`."""
        shown = prompt.contents(log, agent=work.agent, branch=work.branch, summary=summary)
        like, before = self._last.get(work.agent, (None, []))
        same = _same(before, shown)
        self._last[work.agent] = number, shown
        return Prompt(len(shown), like, same, tuple(self._content(each) for each in shown[same:]))

    def _content(self, content: JsonObject) -> Content:
        parts = tuple(Part(part, self._events.get(_key(part))) for part in content.get("parts") or ())
        return Content(str(content.get("role") or "user"), parts)


def _same(before: Sequence[JsonObject], shown: Sequence[JsonObject]) -> int:
    for index, (one, other) in enumerate(zip(before, shown, strict=False)):
        if one != other:
            return index
    return min(len(before), len(shown))


def _key(part: JsonObject) -> bytes:
    """Return a digest of a part, without the ids of calls, which models are not shown."""
    told = {
        kind: {name: field for name, field in value.items() if name != "id"} if isinstance(value, dict) else value
        for kind, value in part.items()
    }
    return hashlib.blake2b(encode(told), digest_size=16).digest()
