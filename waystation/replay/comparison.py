"""Differences between two moments, two prompts or two invocations, and between an activity and its replay.

Ids, times and metadata of model providers are not compared, only what happened.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, overload

from waystation.core import (
    Event,
    EventActions,
    Failure,
    JsonObject,
    ModelReply,
    PendingCall,
    ToolOutcome,
    parts_of,
    text_of,
)
from waystation.replay.displayable import Displayable
from waystation.replay.prompt import Prompt
from waystation.replay.recording import Moment, Recording

MIN_ID = 6
"""Characters of an id that is passed over where it stands in a text; a shorter one may be there by chance."""

_CALLS = frozenset({"functionCall", "functionResponse", "originalFunctionCall"})

ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT", "__slots__": ()})()
"""The value of a place that one side does not have."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs between two JSON objects, key by key."""

    added: JsonObject
    changed: dict[str, tuple[Any, Any]]
    """The value before, and the one after."""
    removed: JsonObject

    @classmethod
    def between(cls, before: Mapping[str, Any], after: Mapping[str, Any]) -> "Changes":
        """Return what became of `before`."""
        return cls(
            {key: value for key, value in after.items() if key not in before},
            {key: (before[key], now) for key, now in after.items() if key in before and not alike(before[key], now)},
            {key: value for key, value in before.items() if key not in after},
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        changed = {key: {"before": before, "after": after} for key, (before, after) in self.changed.items()}
        return {"added": self.added, "changed": changed, "removed": self.removed}


@dataclass(frozen=True)
class MomentDifference(Displayable):
    """What happened between two moments."""

    before: Moment
    after: Moment

    @cached_property
    def state(self) -> Changes:
        """What became of the state."""
        return Changes.between(self.before.state, self.after.state)

    @property
    def events(self) -> Sequence[Event]:
        """The events after the one up to the other; none when time goes backwards."""
        return self.after.events[len(self.before.events) :]

    @property
    def began_to_wait(self) -> Sequence[PendingCall]:
        """Calls that waited for a person only at the later one."""
        return _others(self.after.pending, self.before.pending)

    @property
    def waits_no_more(self) -> Sequence[PendingCall]:
        """Calls that waited for a person only at the earlier one."""
        return _others(self.before.pending, self.after.pending)

    def __bool__(self) -> bool:
        return bool(self.state or self.events or self.began_to_wait or self.waits_no_more)


@dataclass(frozen=True)
class PromptDifference(Displayable):
    """What one prompt has that another has not."""

    before: Prompt
    after: Prompt

    @cached_property
    def contents(self) -> Sequence[tuple[str, JsonObject]]:
        """Contents only in one of them, in order, each with `-` or `+`."""
        old, new = self.before.contents, self.after.contents
        found: list[tuple[str, JsonObject]] = []
        keys = [_text(each) for each in old], [_text(each) for each in new]
        for kind, a, b, c, d in difflib.SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
            if kind != "equal":
                found += [("-", each) for each in old[a:b]] + [("+", each) for each in new[c:d]]
        return found

    @cached_property
    def instruction(self) -> Sequence[str]:
        """The instruction's lines as a unified listing; none if it is the same."""
        old, new = ((each.instruction or "").splitlines() for each in (self.before, self.after))
        return list(difflib.unified_diff(old, new, lineterm="", n=1))[2:]

    @cached_property
    def tools(self) -> Changes:
        """Tools by name."""
        old, new = ({str(each.get("name")): each for each in prompt.tools} for prompt in (self.before, self.after))
        return Changes.between(old, new)

    @cached_property
    def config(self) -> Changes:
        """Settings, the model's name among them."""
        old, new = ({"model": prompt.model, **prompt.config} for prompt in (self.before, self.after))
        return Changes.between(old, new)

    def __bool__(self) -> bool:
        return bool(self.contents or self.instruction or self.tools or self.config)


@dataclass(frozen=True, slots=True)
class Pair:
    """Events of two invocations that stand beside each other, by number; None where one has nothing like it."""

    left: int | None
    right: int | None
    same: bool


@dataclass(frozen=True)
class RecordingDifference(Displayable):
    """The events of two invocations side by side."""

    left: Recording
    right: Recording

    @cached_property
    def pairs(self) -> Sequence[Pair]:
        """All events of both, in order."""
        return list(_paired(self.left, self.right))

    @cached_property
    def first(self) -> Pair | None:
        """Where they part; None when the same happened in both."""
        return next((pair for pair in self.pairs if not pair.same), None)

    @cached_property
    def state(self) -> Changes:
        """What differs in the right one's state right after they part; at their ends if they never do."""
        until = self.pairs[: self.pairs.index(self.first) + 1] if self.first else self.pairs
        left = max((pair.left for pair in until if pair.left), default=self.left.events_before)
        right = max((pair.right for pair in until if pair.right), default=self.right.events_before)
        return Changes.between(self.left.moment(left).state, self.right.moment(right).state)

    def __bool__(self) -> bool:
        return self.first is not None


@overload
def difference(before: Moment, after: Moment) -> MomentDifference: ...
@overload
def difference(before: Prompt, after: Prompt) -> PromptDifference: ...
@overload
def difference(before: Recording, after: Recording) -> RecordingDifference: ...
def difference(before: Any, after: Any) -> Any:
    """Return what is different in `after`: two moments, two prompts or two recordings. It is false if nothing is."""
    match before, after:
        case Moment(), Moment():
            return MomentDifference(before, after)
        case Prompt(), Prompt():
            return PromptDifference(before, after)
        case Recording(), Recording():
            return RecordingDifference(before, after)
    names = f"{type(before).__name__} and {type(after).__name__}"
    raise TypeError(f"{names} cannot be compared; give two moments, two prompts or two recordings.")


@dataclass(frozen=True, slots=True)
class Differing:
    """One value that is not what was recorded."""

    place: str
    """Where it is, such as `response.items[0].price`."""
    recorded: Any
    now: Any

    def to_json(self) -> JsonObject:
        """Return it as JSON, without the side that has no value."""
        sides = {"recorded": self.recorded, "now": self.now}
        return {"place": self.place, **{name: value for name, value in sides.items() if value is not ABSENT}}


def json_differences(one: Any, other: Any, place: str = "") -> Iterator[Differing]:
    """Yield each place at which two JSON values differ."""
    match one, other:
        case dict(), dict():
            for key in dict.fromkeys([*one, *other]):
                at = f"{place}.{key}" if place else str(key)
                yield from json_differences(one.get(key, ABSENT), other.get(key, ABSENT), at)
        case list(), list() if len(one) == len(other):
            for index, (left, right) in enumerate(zip(one, other, strict=True)):
                yield from json_differences(left, right, f"{place}[{index}]")
        case _:
            # 1 and True are equal in Python, but not to a model.
            if type(one) is not type(other) or one != other:
                yield Differing(place, one, other)


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; True and 1 are not."""
    return one is other or _text(one) == _text(other)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _others(some: Sequence[PendingCall], but: Sequence[PendingCall]) -> list[PendingCall]:
    known = {(call.function_call_id, call.requested_at) for call in but}
    return [call for call in some if (call.function_call_id, call.requested_at) not in known]


def _paired(left: Recording, right: Recording) -> Iterator[Pair]:
    """Pair what is the same, and in between what is of one kind."""
    said = [[_happened(event, each.id) for event in each.events] for each in (left, right)]
    kinds = [[_kind(event) for event in each.events] for each in (left, right)]
    first_left, first_right = left.events_before, right.events_before
    for kind, a, b, c, d in _blocks(*said):
        if kind == "equal":
            yield from (Pair(first_left + a + i + 1, first_right + c + i + 1, True) for i in range(b - a))
            continue
        for _, e, f, g, h in difflib.SequenceMatcher(None, kinds[0][a:b], kinds[1][c:d]).get_opcodes():
            lefts = (first_left + a + x + 1 for x in range(e, f))
            rights = (first_right + c + y + 1 for y in range(g, h))
            yield from (Pair(x, y, False) for x, y in zip_longest(lefts, rights))


def _blocks(one: list[str], other: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield what is equal and what is not. Most invocations begin alike, which is found without searching."""
    alike = next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    if alike:
        yield "equal", 0, alike, 0, alike
    for kind, a, b, c, d in difflib.SequenceMatcher(None, one[alike:], other[alike:]).get_opcodes():
        yield kind, a + alike, b + alike, c + alike, d + alike


def _kind(event: Event) -> str:
    """Return who did what kind of thing."""
    parts = (event.content or {}).get("parts") or ()
    named = [(kind, part[kind].get("name")) for part in parts for kind in part if isinstance(part[kind], dict)]
    return _text([event.author, event.branch, named or sorted({kind for part in parts for kind in part})])


def _happened(event: Event, invocation_id: str) -> str:
    """Return what happened, without ids and times. Tools put the invocation's id into their answers, too."""
    parts = [_plain(part) for part in (event.content or {}).get("parts") or ()]
    actions = event.actions.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={"requested_tool_confirmations", "requested_auth_configs", "compaction"},
    )
    summary = event.actions.compaction.compacted_content if event.actions.compaction else None
    told = _text([event.author, event.branch, parts, actions, summary, event.error_code, event.error_message])
    return told.replace(invocation_id, "…") if len(invocation_id) >= MIN_ID else told


def _plain(value: Any, *, is_call: bool = False) -> Any:
    """Return a part without signatures and the ids of calls."""
    if not isinstance(value, dict):
        return value
    return {
        key: _plain(item, is_call=key in _CALLS)
        for key, item in value.items()
        if key != "thoughtSignature" and not (is_call and key == "id")
    }


@dataclass(frozen=True, kw_only=True)
class Rerun(Displayable):
    """A step that was run again."""

    source: str
    """Where the recording is from."""
    what: str
    """The step in a few words."""
    recorded: ToolOutcome | ModelReply | None
    recorded_failure: Failure | None
    """Why nothing was recorded of it."""
    now: ToolOutcome | ModelReply | None
    failure: Failure | None = None
    """Why it gave nothing now: the activity failed, as it would on a worker."""
    remarks: Sequence[str] = ()
    """What one has to know before relying on the comparison."""

    def sides(self) -> tuple[JsonObject, JsonObject]:
        """Return the recorded result and the present one as JSON, without values that differ on each run."""
        return _side(self.recorded, self.recorded_failure), _side(self.now, self.failure)

    def durations(self) -> tuple[float | None, float | None]:
        """Return how long it took, in seconds, as recorded and now."""
        return self.recorded.duration_s if self.recorded else None, self.now.duration_s if self.now else None

    @property
    def differences(self) -> list[Differing]:
        """What is not as it was recorded; how long it took, and marks that no two runs share, left out."""
        return list(json_differences(*self.sides()))

    @property
    def same(self) -> bool:
        """Whether all of it is as it was recorded."""
        return not self.differences

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        recorded, now = self.sides()
        taken, takes = self.durations()
        return {
            "source": self.source,
            "step": self.what,
            "same": self.same,
            "recorded": {**recorded, "duration_s": taken},
            "now": {**now, "duration_s": takes},
            "differences": [each.to_json() for each in self.differences],
            "remarks": list(self.remarks),
        }


@dataclass(frozen=True, kw_only=True)
class ToolRerun(Rerun):
    """A tool call that was run again."""

    agent: str
    tool: str
    function_call_id: str
    args: JsonObject
    """With which it ran now."""
    idempotency_key: str
    """That of the recorded run."""
    recorded: ToolOutcome | None
    now: ToolOutcome | None


@dataclass(frozen=True, kw_only=True)
class ModelRerun(Rerun):
    """A model call that was made again."""

    agent: str
    number: int
    """Which of the invocation's model calls it is."""
    request: JsonObject | None
    """What the model was given now; None when it was not asked."""
    edited: Sequence[Differing] = ()
    """What of the request was edited."""
    changed: bool | None = None
    """Whether the agent's definition has changed since; None when nobody can tell."""
    recorded: ModelReply | None
    now: ModelReply | None

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        edited = [each.to_json() for each in self.edited]
        return super().to_json() | {"agent_changed": self.changed, "edited": edited, "request": self.request}


def _side(result: ToolOutcome | ModelReply | None, failure: Failure | None) -> JsonObject:
    match result:
        case ToolOutcome():
            return _outcome(result)
        case ModelReply():
            return _reply(result)
    return _without_empty({"failed": failure.error_type or failure.kind, "reason": failure.message}) if failure else {}


def _outcome(outcome: ToolOutcome) -> JsonObject:
    optional = {
        "error": outcome.error_type,
        "waits": not outcome.final,
        "media": list(outcome.parts),
        "beside": list(outcome.beside),
    }
    return {"response": outcome.response} | _actions(outcome.actions) | _without_empty(optional)


def _reply(reply: ModelReply) -> JsonObject:
    calls = parts_of(reply.content, "functionCall")
    optional = {
        "calls": [{"name": call.get("name"), "args": call.get("args") or {}} for call in calls],
        "usage": reply.usage.model_dump(mode="json", exclude_defaults=True) if reply.usage else None,
        "finish reason": reply.finish_reason,
        "error": reply.error_code,
        "error message": reply.error_message,
        "model": reply.model_version,
    }
    return {"text": text_of(reply.content)} | _without_empty(optional) | _actions(reply.actions)


def _without_empty(values: JsonObject) -> JsonObject:
    return {name: value for name, value in values.items() if value}


def _actions(actions: EventActions | None) -> JsonObject:
    held = actions.model_dump(mode="json", exclude_defaults=True) if actions else {}
    return {"state" if name == "state_delta" else name.replace("_", " "): value for name, value in held.items()}
