"""Compare two moments, two prompts or two invocations, or an activity with its replay.

Comparisons of events and results ignore IDs, times and the metadata of model providers.
"""

import difflib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from rich.console import Group, RenderableType
from rich.table import Column
from rich.text import Text

from waystation.core.approval import PendingCall
from waystation.core.contract import Event, EventActions, ModelReply, ToolOutcome, parts_of, text_of
from waystation.core.log import Failure
from waystation.core.payload import JsonObject
from waystation.core.secrets import hide_secrets_at
from waystation.presentation import terminal
from waystation.presentation.tables import make_table
from waystation.replay.changes import Changes, to_text
from waystation.replay.displayable import Displayable
from waystation.replay.model_prompt import Prompt
from waystation.replay.recording import Moment, Recording
from waystation.replay.recording_views import (
    BOLD,
    DIM,
    GONE,
    MAX_EVENTS,
    NEW,
    STYLES,
    format_changes,
    format_content,
    format_event,
    section,
)

MIN_ID = 6
"""Minimum length of an invocation ID that comparisons ignore inside text. A shorter ID may occur there by chance."""

CONTEXT = 2
"""Number of pairs to show before and after each difference in a comparison that is not shown in full."""

_CALLS = frozenset({"functionCall", "functionResponse", "originalFunctionCall"})

ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT", "__slots__": ()})()
"""Placeholder for the missing value when only one side of a comparison has a value."""


@dataclass(frozen=True)
class MomentDifference(Displayable):
    """The changes between two moments of a recording."""

    before: Moment
    after: Moment

    @cached_property
    def state(self) -> Changes:
        """The changes to the state."""
        return Changes.between(self.before.state, self.after.state)

    @property
    def events(self) -> Sequence[Event]:
        """The events after `before`, up to and including `after`. Empty if `after` is the earlier moment."""
        return self.after.events[len(self.before.events) :]

    @property
    def began_to_wait(self) -> Sequence[PendingCall]:
        """Calls that are pending at `after` but not at `before`."""
        return _only_in(self.after.pending, self.before.pending)

    @property
    def waits_no_more(self) -> Sequence[PendingCall]:
        """Calls that are pending at `before` but not at `after`."""
        return _only_in(self.before.pending, self.after.pending)

    def __bool__(self) -> bool:
        return bool(self.state or self.events or self.began_to_wait or self.waits_no_more)

    def __rich__(self) -> RenderableType:
        state = format_changes(self.state) if self.state else Text("  the state did not change", DIM)
        waits = [("now pending", call) for call in self.began_to_wait]
        waits += [("no longer pending", call) for call in self.waits_no_more]
        return Group(
            Text(f"event {self.before.number} → {self.after.number}", BOLD),
            state,
            *(Text(f"  {what}: {terminal.format_call(call)} [{call.function_call_id}]") for what, call in waits),
        )


@dataclass(frozen=True)
class PromptDifference(Displayable):
    """The differences between two prompts."""

    before: Prompt
    after: Prompt

    @cached_property
    def contents(self) -> Sequence[tuple[str, JsonObject]]:
        """The contents that only one prompt has, in order. `-` marks the first prompt's contents, `+` the second's."""
        old, new = self.before.contents, self.after.contents
        changes: list[tuple[str, JsonObject]] = []
        keys = [to_text(content) for content in old], [to_text(content) for content in new]
        for kind, a, b, c, d in difflib.SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
            if kind != "equal":
                changes += [("-", content) for content in old[a:b]] + [("+", content) for content in new[c:d]]
        return changes

    @cached_property
    def instruction(self) -> Sequence[str]:
        """The lines of a unified diff of the instructions. Empty if the instructions are equal."""
        old, new = ((prompt.instruction or "").splitlines() for prompt in (self.before, self.after))
        return list(difflib.unified_diff(old, new, lineterm="", n=1))[2:]

    @cached_property
    def tools(self) -> Changes:
        """The changes to tools, by tool name."""
        old, new = ({str(tool.get("name")): tool for tool in prompt.tools} for prompt in (self.before, self.after))
        return Changes.between(old, new)

    @cached_property
    def config(self) -> Changes:
        """The changes to settings, including the model name."""
        old, new = ({"model": prompt.model, **prompt.config} for prompt in (self.before, self.after))
        return Changes.between(old, new)

    def __bool__(self) -> bool:
        return bool(self.contents or self.instruction or self.tools or self.config)

    def __rich__(self) -> RenderableType:
        before, after = self.before, self.after
        parts: list[RenderableType] = [Text(f"prompt at event {before.at} → {after.at}", BOLD)]
        if before.agent != after.agent:
            parts.append(Text(f"of {terminal.escape(before.agent)} → {terminal.escape(after.agent)}"))
        sections: dict[str, list[RenderableType]] = {
            "settings": [format_changes(self.config)] if self.config else [],
            "instruction": [Text(terminal.escape(line), STYLES.get(line[:1], "")) for line in self.instruction],
            "tools": [format_changes(self.tools)] if self.tools else [],
            "contents": [
                Text.assemble((f"{sign} ", STYLES[sign]), format_content(content)) for sign, content in self.contents
            ],
        }
        parts += [section(title, *body) for title, body in sections.items() if body]
        parts += [] if self else [Text("  no difference", DIM)]
        return Group(*parts)


@dataclass(frozen=True, slots=True)
class Pair:
    """The numbers of two corresponding events. A number is None if its invocation has no corresponding event."""

    left: int | None
    right: int | None
    same: bool


@dataclass(frozen=True)
class RecordingDifference(Displayable):
    """The differences between the events of two invocations."""

    left: Recording
    right: Recording

    @cached_property
    def pairs(self) -> Sequence[Pair]:
        """All events of both invocations in order, as pairs."""
        return list(_pair_events(self.left, self.right))

    @cached_property
    def first(self) -> Pair | None:
        """The first pair of events that differs, or None if all events are the same."""
        return next((pair for pair in self.pairs if not pair.same), None)

    @cached_property
    def state(self) -> Changes:
        """How the right invocation's state differs from the left one's just after the first difference, or at the end
        if all events are the same."""
        until = self.pairs[: self.pairs.index(self.first) + 1] if self.first else self.pairs
        left = max((pair.left for pair in until if pair.left), default=self.left.events_before)
        right = max((pair.right for pair in until if pair.right), default=self.right.events_before)
        sides = [(self.left, self.left.moment(left).state), (self.right, self.right.moment(right).state)]
        texts = [{key: _hide_id(to_text(value), side.id) for key, value in state.items()} for side, state in sides]
        same = {key for key, text in texts[0].items() if texts[1].get(key) == text}
        return Changes.between(*({key: state[key] for key in state.keys() - same} for _, state in sides))

    def __bool__(self) -> bool:
        return self.first is not None

    def __rich__(self) -> RenderableType:
        return self.side_by_side(CONTEXT if len(self.pairs) > MAX_EVENTS else None)

    def side_by_side(self, context: int | None = None) -> RenderableType:
        """Return the events of both recordings side by side.

        With `context`, show only that many pairs before and after each difference.
        """
        columns = [
            column
            for side in (self.left, self.right)
            for column in (
                Column("#", justify="right", style=DIM, no_wrap=True),
                Column(terminal.escape(side.source), ratio=1, overflow="fold"),
            )
        ]
        table = make_table(columns, self._list_rows(context), expand=True)
        if self.first is None:
            return Group(table, Text("Both recordings have the same events.", "bold green"))
        left, right = (f"event {number}" if number else "nothing" for number in (self.first.left, self.first.right))
        first = Text.assemble(("First difference: ", "bold red"), f"{left} on the left, {right} on the right.")
        parts: list[RenderableType] = [table, first]
        if self.state:
            parts += [Text("state at that point", BOLD), format_changes(self.state)]
        return Group(*parts)

    def _list_rows(self, context: int | None) -> Iterator[Sequence[str | Text]]:
        for near, pairs in itertools.groupby(self.pairs, key=_is_near(self.pairs, context)):
            if not near:
                yield "", Text(f"… {len(list(pairs))} equal events", DIM), "", ""
                continue
            for pair in pairs:
                style = DIM if pair.same else ("bold reverse" if pair is self.first else "")
                yield *_side(self.left, pair.left, GONE, style), *_side(self.right, pair.right, NEW, style)


def _is_near(pairs: Sequence[Pair], context: int | None) -> Callable[[Pair], bool]:
    """Return a predicate for pairs that differ, or are within `context` pairs of a pair that differs.

    If `context` is None, the predicate accepts all pairs.
    """
    if context is None:
        return lambda _: True
    differing = [index for index, pair in enumerate(pairs) if not pair.same]
    near = {id(pair) for index in differing for pair in pairs[max(index - context, 0) : index + context + 1]}
    return lambda pair: id(pair) in near


def _side(recording: Recording, number: int | None, color: str, style: str) -> tuple[str | Text, Text]:
    if number is None:
        return "", Text("—", DIM)
    event = recording.moment(number).event
    assert event
    is_same = style == DIM
    of_text = DIM if is_same else f"{color} {'bold' if style else ''}".strip()
    return Text(str(number), "" if is_same else style), Text(format_event(event).plain, of_text)


@overload
def difference(before: Moment, after: Moment) -> MomentDifference: ...
@overload
def difference(before: Prompt, after: Prompt) -> PromptDifference: ...
@overload
def difference(before: Recording, after: Recording) -> RecordingDifference: ...
def difference(before: Any, after: Any) -> Any:
    """Compare two moments, two prompts or two recordings. The result is falsy if nothing differs.

    Raises:
        TypeError: The values have different types or a type that cannot be compared.
    """
    match before, after:
        case Moment(), Moment():
            return MomentDifference(before, after)
        case Prompt(), Prompt():
            return PromptDifference(before, after)
        case Recording(), Recording():
            return RecordingDifference(before, after)
    names = f"{type(before).__name__} and {type(after).__name__}"
    raise TypeError(f"{names} cannot be compared. Pass two moments, two prompts or two recordings.")


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """One difference between two JSON values, usually a recorded value and a new one."""

    place: str
    """A path such as `response.items[0].price`. Empty for the value as a whole."""
    recorded: Any
    now: Any

    def to_json(self) -> JsonObject:
        """Return the difference as JSON. A side without a value is left out."""
        sides = {"recorded": self.recorded, "now": self.now}
        return {"place": self.place, **{name: value for name, value in sides.items() if value is not ABSENT}}


def compare_json(one: Any, other: Any, place: str = "") -> Iterator[ValueDifference]:
    """Yield each place where two JSON values differ. Lists of different lengths differ as a whole."""
    match one, other:
        case dict(), dict():
            for key in dict.fromkeys([*one, *other]):
                at = f"{place}.{key}" if place else str(key)
                yield from compare_json(one.get(key, ABSENT), other.get(key, ABSENT), at)
        case list(), list() if len(one) == len(other):
            for index, (left, right) in enumerate(zip(one, other, strict=True)):
                yield from compare_json(left, right, f"{place}[{index}]")
        case _:
            # In Python, 1 equals True, but for a model they are different values.
            if type(one) is not type(other) or one != other:
                yield ValueDifference(place, one, other)


def _only_in(calls: Sequence[PendingCall], others: Sequence[PendingCall]) -> list[PendingCall]:
    known = {(call.function_call_id, call.requested_at) for call in others}
    return [call for call in calls if (call.function_call_id, call.requested_at) not in known]


def _pair_events(left: Recording, right: Recording) -> Iterator[Pair]:
    """Pair equal events, and then pair the events between them by kind or, if no kinds match, by position."""
    contents = [[_describe_content(event, side.id) for event in side.events] for side in (left, right)]
    kinds = [[_describe_kind(event) for event in side.events] for side in (left, right)]
    first_left, first_right = left.events_before, right.events_before
    for kind, a, b, c, d in _find_blocks(*contents):
        if kind == "equal":
            yield from (Pair(first_left + a + i + 1, first_right + c + i + 1, True) for i in range(b - a))
            continue
        for _, e, f, g, h in difflib.SequenceMatcher(None, kinds[0][a:b], kinds[1][c:d]).get_opcodes():
            lefts = (first_left + a + x + 1 for x in range(e, f))
            rights = (first_right + c + y + 1 for y in range(g, h))
            yield from (Pair(x, y, False) for x, y in itertools.zip_longest(lefts, rights))


def _find_blocks(one: list[str], other: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield `difflib` opcodes for two lists. Their common start is found first, because `difflib` is slow."""
    alike = next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    if alike:
        yield "equal", 0, alike, 0, alike
    for kind, a, b, c, d in difflib.SequenceMatcher(None, one[alike:], other[alike:]).get_opcodes():
        yield kind, a + alike, b + alike, c + alike, d + alike


def _describe_kind(event: Event) -> str:
    """Return an event's author and branch, and the kinds of its parts with the names of functions, as JSON text."""
    parts = (event.content or {}).get("parts") or ()
    names = [(kind, part[kind].get("name")) for part in parts for kind in part if isinstance(part[kind], dict)]
    return to_text([event.author, event.branch, names or sorted({kind for part in parts for kind in part})])


def _describe_content(event: Event, invocation_id: str) -> str:
    """Return an event's content without IDs and times, as JSON text.

    The invocation ID is also replaced inside text, unless it is shorter than `MIN_ID`.
    """
    parts = [_strip_ids(part) for part in (event.content or {}).get("parts") or ()]
    actions = event.actions.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={"requested_tool_confirmations", "requested_auth_configs", "compaction"},
    )
    summary = event.actions.compaction.compacted_content if event.actions.compaction else None
    text = to_text([event.author, event.branch, parts, actions, summary, event.error_code, event.error_message])
    return _hide_id(text, invocation_id)


def _hide_id(text: str, invocation_id: str) -> str:
    return text.replace(invocation_id, "…") if len(invocation_id) >= MIN_ID else text


def _strip_ids(value: Any, *, is_call: bool = False) -> Any:
    """Return a part without its thought signatures and call IDs."""
    if not isinstance(value, dict):
        return value
    return {
        key: _strip_ids(item, is_call=key in _CALLS)
        for key, item in value.items()
        if key != "thoughtSignature" and not (is_call and key == "id")
    }


@dataclass(frozen=True, kw_only=True)
class Rerun(Displayable):
    """The result of re-running an activity, together with the recorded result."""

    source: str
    """The recording's file or workflow ID."""
    what: str
    """A short description of the activity."""
    recorded: ToolOutcome | ModelReply | None
    recorded_failure: Failure | None
    """Why the recorded activity failed, or None if it has a result, never ran, or had not ended."""
    now: ToolOutcome | ModelReply | None
    failure: Failure | None = None
    """Why the activity failed now, or None if it has a result."""
    remarks: Sequence[str] = ()
    """Notes on what limits the comparison."""

    def sides(self) -> tuple[JsonObject, JsonObject]:
        """Return the recorded and the new result or failure as JSON, without values that differ on every run."""
        return _result_to_json(self.recorded, self.recorded_failure), _result_to_json(self.now, self.failure)

    def durations(self) -> tuple[float | None, float | None]:
        """Return the recorded and the new duration in seconds. Each is None if that run has no result."""
        return self.recorded.duration_s if self.recorded else None, self.now.duration_s if self.now else None

    @property
    def differences(self) -> list[ValueDifference]:
        """The values that differ, ignoring durations and random IDs."""
        return list(compare_json(*self.sides()))

    @property
    def same(self) -> bool:
        """Whether the recorded and the new result are the same."""
        return not self.differences

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        recorded, now = self.sides()
        duration_before, duration_now = self.durations()
        return {
            "source": self.source,
            "step": self.what,
            "same": self.same,
            "recorded": {**recorded, "duration_s": duration_before},
            "now": {**now, "duration_s": duration_now},
            "differences": [difference.to_json() for difference in self.differences],
            "remarks": list(self.remarks),
        }

    def __rich__(self) -> RenderableType:
        columns = [
            Column(name, overflow="fold", style=style) for name, style in (("", DIM), ("recorded", ""), ("now", ""))
        ]
        table = make_table(columns, self._list_rows())
        verdict = ("as recorded", "bold green") if self.same else ("differs", "bold yellow")
        title = Text.assemble(verdict, f"  {terminal.escape(self.what)}, run again on this machine")
        return Group(title, table, *(Text(terminal.escape(remark), style="dim") for remark in self.remarks))

    def _list_rows(self) -> Iterator[tuple[str | Text, ...]]:
        recorded, now = self.sides()
        for name in dict.fromkeys([*recorded, *now]):
            differences = [each for each in self.differences if each.place.split(".", 1)[0].split("[", 1)[0] == name]
            if not differences:
                yield name, _value(name, recorded[name]), Text("unchanged", DIM)
            for each in differences:
                yield each.place, _value(each.place, each.recorded, "red"), _value(each.place, each.now, "green")
        yield "duration", *(f"{taken:.3f} s" if taken is not None else "" for taken in self.durations())


@dataclass(frozen=True, kw_only=True)
class ToolRerun(Rerun):
    """The result of a replayed tool call."""

    agent: str
    tool: str
    function_call_id: str
    args: JsonObject
    """The arguments of the replayed call."""
    idempotency_key: str
    """The idempotency key of the recorded call, which the replayed call receives, too."""
    recorded: ToolOutcome | None
    now: ToolOutcome | None


@dataclass(frozen=True, kw_only=True)
class ModelRerun(Rerun):
    """The result of a replayed model call."""

    agent: str
    number: int
    """Number of the model call in the invocation."""
    request: JsonObject | None
    """The request of the replayed call, or None if the model was not called."""
    edited: Sequence[ValueDifference] = ()
    """The edits made to the request."""
    changed: bool | None = None
    """Whether the agent's definition has changed since the recording, or None if unknown."""
    recorded: ModelReply | None
    now: ModelReply | None

    def to_json(self) -> JsonObject:
        """Return the JSON that `--json` prints."""
        edited = [edit.to_json() for edit in self.edited]
        return super().to_json() | {"agent_changed": self.changed, "edited": edited, "request": self.request}

    def __rich__(self) -> RenderableType:
        places = ", ".join(terminal.escape(edit.place) for edit in self.edited)
        return Group(*([Text.assemble(("edited  ", BOLD), places)] if places else []), super().__rich__())


def _value(place: str, value: Any, style: str = "") -> Text:
    if value is ABSENT:
        return Text("nothing", style="dim")
    value = hide_secrets_at(place, value)
    if isinstance(value, str):
        return Text("\n".join(map(terminal.escape, terminal.clip(value).splitlines())) or '""', style=style)
    return Text(terminal.clip_json(value), style=style)


def _result_to_json(result: ToolOutcome | ModelReply | None, failure: Failure | None) -> JsonObject:
    match result:
        case ToolOutcome():
            return _outcome_to_json(result)
        case ModelReply():
            return _reply_to_json(result)
    return _without_empty({"failed": failure.error_type or failure.kind, "reason": failure.message}) if failure else {}


def _outcome_to_json(outcome: ToolOutcome) -> JsonObject:
    optional = {
        "error": outcome.error_type,
        "waits": not outcome.final,
        "media": list(outcome.parts),
        "beside": list(outcome.beside),
    }
    return {"response": outcome.response} | _actions_to_json(outcome.actions) | _without_empty(optional)


def _reply_to_json(reply: ModelReply) -> JsonObject:
    calls = parts_of(reply.content, "functionCall")
    optional = {
        "calls": [{"name": call.get("name"), "args": call.get("args") or {}} for call in calls],
        "usage": reply.usage.model_dump(mode="json", exclude_defaults=True) if reply.usage else None,
        "finish reason": reply.finish_reason,
        "error": reply.error_code,
        "error message": reply.error_message,
        "model": reply.model_version,
    }
    return {"text": text_of(reply.content)} | _without_empty(optional) | _actions_to_json(reply.actions)


def _without_empty(values: JsonObject) -> JsonObject:
    return {name: value for name, value in values.items() if value}


def _actions_to_json(actions: EventActions | None) -> JsonObject:
    values = actions.model_dump(mode="json", exclude_defaults=True) if actions else {}
    return {"state" if name == "state_delta" else name.replace("_", " "): value for name, value in values.items()}
