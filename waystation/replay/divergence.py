"""The first thing that the present workflow code wants otherwise than a history recorded it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.client import WorkflowHistory

from waystation.core.payload import JsonObject, encode
from waystation.core.summary import clip
from waystation.history import run_ids_of
from waystation.replay.commands import Command, Content, Run, asked, tasks, value_of
from waystation.replay.earlier import is_no_difference, is_the_replayers, names_this_run
from waystation.replay.leaves import ABSENT, leaves
from waystation.replay.watching import Activation

_READABLE = frozenset({b"json/plain", b"json/protobuf", b"binary/null", b"binary/plain", b""})
"""Encodings that say what a payload holds. Others are a codec's, or stand for what is in no store."""
_FOLLOWS = {"memo": 1, "timer": 2, "accept": 2, "attributes": 3}
DIFFERENCES = 5
"""Of the parts in which two commands differ, how many are told."""


class Part(NamedTuple):
    """In what a command differs from the recorded one."""

    name: str
    """Such as `input.args.amount`."""
    recorded: Any
    now: Any

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        return {"name": self.name, "recorded": plain_of(self.recorded), "now": plain_of(self.now)}


@dataclass(frozen=True, slots=True)
class Difference:
    """Where code and history part for the first time, in Temporal's terms."""

    started: int
    """Id of the event with which the workflow task started."""
    completed: int
    """Id of the event with which it was completed."""
    recorded: Command | None
    """None: nothing more."""
    now: Command | None
    """None: nothing more."""
    parts: Sequence[Part] = ()
    """In what the two differ, when they are of one kind and about the same."""
    swapped: bool = False
    """Whether both ask for the same, in another order."""
    activation: int = -1
    """Which activation it was, counted from 0."""
    index: int = -1
    """Which of its commands asks for what is wanted now."""
    failure: str | None = None
    """Why the workflow task fails now."""
    failure_type: str | None = None
    """The error's name, then."""


def first_difference(history: WorkflowHistory, activations: Sequence[Activation], queue: str) -> Difference | None:
    """Compare what a history records, with payloads opened, with what the code did when it was replayed.

    What the code did after the last recorded workflow task is no difference: nobody has recorded that yet.

    Args:
        history: The history.
        activations: What the code did.
        queue: The replayer's task queue.
    """
    run = Run(history.events[0].workflow_execution_started_event_attributes)
    own = run_ids_of(history.events)
    done = tasks(history.events)
    starts = sorted(done)
    # Tasks without commands are replayed together with the one after them.
    at, updated = 0, False
    for start in starts:
        completed, recorded = done[start]
        first, wanted = at, list[WorkflowCommand]()
        while at < len(activations) and activations[at].started <= start:
            wanted.extend(activations[at].commands)
            if failure := activations[at].failure:
                type = failure.application_failure_info.type
                text = failure.message.strip() or type
                recorded_then = _telling(recorded)
                return Difference(start, completed, recorded_then, None, activation=at, failure=text, failure_type=type)
            at += 1
        if at == first:
            if recorded and at < len(activations):
                return Difference(start, completed, _telling(recorded), None)
            continue
        updated = updated or any(command.kind == "accept" for command in recorded)
        if found := _compared(recorded, asked(wanted, run, queue), own, updated):
            one, other, parts, swapped = found
            number, index = _place_of(other, activations[first:at]) if other else (at - first - 1, -1)
            return Difference(start, completed, one, other, parts, swapped, first + number, index)
    return None


def _place_of(command: Command, activations: Sequence[Activation]) -> tuple[int, int]:
    """Return in which of the activations of a workflow task a command was made, and which of its commands it is."""
    index = command.index
    for number, activation in enumerate(activations):
        if index < len(activation.commands):
            return number, index
        index -= len(activation.commands)
    raise AssertionError(command)


_Found = tuple[Command | None, Command | None, Sequence[Part], bool]


def _compared(recorded: Sequence[Command], now: Sequence[Command], own: Sequence[str], updated: bool) -> _Found | None:
    """Compare what one workflow task asks for; `own`: the run's ids, `updated`: whether there was an update by then."""

    def counts(one: Command, part: Part) -> bool:
        replayers = names_this_run(*part, own) or (updated and is_the_replayers(part.name))
        return not (replayers or is_no_difference(one, *part))

    for number in range(max(len(recorded), len(now))):
        one = recorded[number] if number < len(recorded) else None
        other = now[number] if number < len(now) else None
        if one and other and _about_the_same(one, other):
            if parts := [part for part in differing(one, other) if counts(one, part)]:
                return one, other, parts[:DIFFERENCES], False
            continue
        # From here on all that the workflow task asks for is out of step.
        missing = [each for each in recorded[number:] if not _among(each, now[number:])]
        added = [each for each in now[number:] if not _among(each, recorded[number:])]
        swapped = not missing and not added and one is not None and other is not None
        return (one, other, (), True) if swapped else (_telling(missing), _telling(added), (), False)
    return None


def _telling(commands: Sequence[Command]) -> Command | None:
    """Return the command that says most of what goes on; what is shown outside, and timers, only follow from it."""
    return min(commands, key=lambda each: _FOLLOWS.get(each.kind, 0), default=None)


def _about_the_same(one: Command, other: Command) -> bool:
    return (one.kind, one.name, one.id) == (other.kind, other.name, other.id)


def _among(command: Command, others: Sequence[Command]) -> bool:
    return any(_about_the_same(command, other) for other in others)


def differing(recorded: Command, now: Command) -> Iterator[Part]:
    """Yield in what two commands that are about the same differ."""
    for name in dict.fromkeys([*recorded.fields, *now.fields]):
        yield from _parts(name, recorded.fields.get(name, ABSENT), now.fields.get(name, ABSENT))


def _parts(name: str, one: Any, other: Any) -> Iterator[Part]:
    if one == other:
        return
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys([*one, *other]):
            yield from _parts(f"{name}.{key}", one.get(key, ABSENT), other.get(key, ABSENT))
    elif isinstance(one, tuple) and isinstance(other, tuple) and all(isinstance(c, Content) for c in (*one, *other)):
        if len(one) != len(other):
            yield Part(name, len(one), len(other))
        for index, (left, right) in enumerate(zip(one, other, strict=False)):
            yield from _values(name if len(one) == 1 else f"{name}[{index}]", left, right)
    else:
        yield Part(name, one, other)


def _values(name: str, one: Content, other: Content) -> Iterator[Part]:
    if one == other or one.encoding not in _READABLE:
        return
    yield from (Part(*found) for found in leaves(value_of(one), value_of(other), name))


def shown(value: Any) -> str:
    """Return a part on one line."""
    return "absent" if value is ABSENT else clip(encode(plain_of(value)).decode())


def plain_of(value: Any) -> Any:
    """Return a value as JSON can say it."""
    if value is ABSENT:
        return None
    if isinstance(value, Content):
        value = value_of(value)
    if isinstance(value, tuple):
        return [plain_of(each) for each in value]
    return f"{len(value)} bytes" if isinstance(value, bytes) else value
