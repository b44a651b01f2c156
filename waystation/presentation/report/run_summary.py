"""What a recording says, entry by entry: events with the changes that they made, and model calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from waystation.core.entry import Began, Entry, Failure, ModelCalled, ModelLost, ModelReplied
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.model_call import ModelReply
from waystation.core.payload import JsonObject
from waystation.core.state import StateFold
from waystation.presentation.report.prompt_summary import Prompt, Prompts
from waystation.replay.recording import Recording

MAX_PROMPTS, MAX_LOOKED_AT = 300, 600_000
"""Prompts that are rebuilt, of the latest calls, and events that are looked at for them: each takes all events."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an event did to one key of the state."""

    key: str
    before: tuple[Any, ...]
    """The value, or nothing."""
    after: tuple[Any, ...]

    def to_json(self) -> JsonObject:
        """Return key and values; one that was not there is left out."""
        found = {"before": self.before, "after": self.after}
        return {"key": self.key, **{name: held[0] for name, held in found.items() if held}}


@dataclass(frozen=True, slots=True)
class Told:
    """An event, and what came of it."""

    number: int
    event: Event
    changes: tuple[Change, ...]
    model_call: int | None
    """Whose reply it is of."""

    def to_json(self) -> JsonObject:
        """Return the event with its number and its changes."""
        about: JsonObject = {"number": self.number}
        if self.model_call:
            about["model_call"] = self.model_call
        return {**about, "event": self.event.to_json(), "changes": [each.to_json() for each in self.changes]}


@dataclass(slots=True)
class ModelCall:
    """One call of a model."""

    number: int
    agent: str
    began: float
    prompt: Prompt | None
    ended: float | None = None
    reply: ModelReply | None = None
    failure: Failure | None = None
    cost: float | None = None
    """In the currency of the budget's prices; None where it has none for the model."""
    defined_before: tuple[int, str] | None = None
    """An earlier call of the agent whose definition was another one: its number, and the digest."""

    @property
    def definition(self) -> str:
        """Digest of the agent's definition at that time."""
        return self.reply.definition if self.reply else ""

    def to_json(self) -> JsonObject:
        """Return what is known; what is not is left out."""
        reply = self.reply
        told: JsonObject = {
            "number": self.number,
            "agent": self.agent,
            "began": self.began,
            "ended": self.ended,
            "model": reply and (reply.model or reply.model_version),
            "attempts": reply.attempt if reply else None,
            "usage": reply.usage.model_dump(exclude_defaults=True) if reply and reply.usage else None,
            "cost": self.cost,
            "finish_reason": reply and reply.finish_reason,
            "error": reply and reply.error_code,
            "wrap_up": reply and reply.wrap_up,
            "failure": self.failure.model_dump(exclude_defaults=True) if self.failure else None,
            "definition": self.definition,
            "prompt": self.prompt.to_json() if self.prompt else None,
        }
        if self.defined_before:
            number, digest = self.defined_before
            told["definition_changed"] = {"since_model_call": number, "before": digest, "after": self.definition}
        return {name: value for name, value in told.items() if value not in (None, "", 0)}


@dataclass(slots=True)
class Telling:
    """What a recording says."""

    events: list[Told] = field(default_factory=list)
    models: list[ModelCall] = field(default_factory=list)


def told(recording: Recording) -> Telling:
    """Go through the entries of an invocation once more."""
    return _Teller(recording).tell(recording.log.entries)


class _Teller:
    def __init__(self, recording: Recording) -> None:
        self._log: Log = recording.after(0)
        self._fold = StateFold(self._log.state)
        self._prompts = Prompts()
        entries = recording.log.entries
        self._replies = {each.body.number: each.body.reply for each in entries if isinstance(each.body, ModelReplied)}
        called = [each.body.number for each in entries if isinstance(each.body, ModelCalled)]
        rebuilt = min(MAX_PROMPTS, MAX_LOOKED_AT // max(len(recording.events), 1))
        self._rebuilt = set(called[len(called) - rebuilt :] if rebuilt < len(called) else called)
        self._calls: dict[int, ModelCall] = {}
        self._definitions: dict[str, tuple[int, str]] = {}
        self._result = Telling()

    def tell(self, entries: Sequence[Entry]) -> Telling:
        for entry in entries:
            self._one(entry)
        return self._result

    def _one(self, entry: Entry) -> None:
        log, body, known = self._log, entry.body, len(self._log.events)
        log.append(entry.ref, entry.time, body)
        call: int | None = None
        match body:
            case Began(given):
                self._fold = StateFold(given.state)
            case ModelCalled():
                self._called(entry.time, body)
            case ModelReplied(number, reply):
                call = self._replied(entry.time, number, reply)
            case ModelLost(number, failure) if found := self._calls.pop(number, None):
                found.ended, found.failure = entry.time, failure
            case _:
                pass
        for event in log.events[known:]:
            number = log.events_before + known + 1
            known += 1
            self._prompts.know(number, event)
            own = call if event.content and event.author != "user" else None
            self._result.events.append(Told(number, event, tuple(self._changes(event)), own))

    def _called(self, now: float, body: ModelCalled) -> None:
        work = self._log.works[body.turn]
        reply = self._replies.get(body.number)
        if not work.asks_model(work.phase_in_flight, reply):
            return
        prompt = None
        if body.number in self._rebuilt:
            made = reply.compaction.event(self._log.invocation_id, work.branch) if reply and reply.compaction else None
            prompt = self._prompts.of(body.number, self._log, work, made)
        call = ModelCall(body.number, work.agent, now, prompt)
        self._calls[body.number] = call
        self._result.models.append(call)

    def _replied(self, now: float, number: int, reply: ModelReply) -> int | None:
        if reply.scopes:
            self._fold.underlay(reply.scopes)
        call = self._calls.pop(number, None)
        if call is None:
            return None
        call.ended, call.reply = now, reply
        price = self._log.budget.price([reply.model or "", reply.model_version or ""])
        call.cost = price.of(reply.usage) if price and reply.usage else None
        before = self._definitions.get(call.agent)
        if before and reply.definition and before[1] != reply.definition:
            call.defined_before = before
        if reply.definition:
            self._definitions[call.agent] = number, reply.definition
        return number

    def _changes(self, event: Event) -> list[Change]:
        before = self._fold.value
        self._fold.apply(event.actions)
        after = self._fold.value
        keys = dict.fromkeys((*event.actions.state_delta, *event.actions.removed_keys))
        return [Change(key, _held(before, key), _held(after, key)) for key in keys]


def _held(state: JsonObject, key: str) -> tuple[Any, ...]:
    return (state[key],) if key in state else ()
