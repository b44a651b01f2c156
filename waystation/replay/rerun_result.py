"""What came of running a recorded step again, beside what was recorded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waystation.core import EventActions, Failure, JsonObject, ModelReply, ToolOutcome, parts_of, text_of
from waystation.replay.comparison import ABSENT, json_differences
from waystation.replay.displayable import Displayable


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
        """Return what was recorded and what came now, as JSON, without what differs each time."""
        raise NotImplementedError

    def durations(self) -> tuple[float | None, float | None]:
        """Return how long it took, in seconds, as recorded and now."""
        return self.recorded.duration_s if self.recorded else None, self.now.duration_s if self.now else None

    @property
    def differences(self) -> list[Differing]:
        """What is not as it was recorded; how long it took, and marks that no two runs share, left out."""
        return find_differences(*self.sides())

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

    def sides(self) -> tuple[JsonObject, JsonObject]:
        """Return what the tool answered and changed."""
        return _outcome(self.recorded, self.recorded_failure), _outcome(self.now, self.failure)


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

    def sides(self) -> tuple[JsonObject, JsonObject]:
        """Return what the model said and used."""
        return _reply(self.recorded, self.recorded_failure), _reply(self.now, self.failure)

    def to_json(self) -> JsonObject:
        """Return what `--json` writes."""
        edited = [each.to_json() for each in self.edited]
        return super().to_json() | {"agent_changed": self.changed, "edited": edited, "request": self.request}


def find_differences(one: Any, other: Any) -> list[Differing]:
    """Return where two JSON values differ."""
    return [Differing(*found) for found in json_differences(one, other)]


def _outcome(outcome: ToolOutcome | None, failure: Failure | None) -> JsonObject:
    if outcome is None:
        return _failed(failure)
    optional = {
        "error": outcome.error_type,
        "waits": not outcome.final,
        "media": list(outcome.parts),
        "beside": list(outcome.beside),
    }
    return {"response": outcome.response} | _actions(outcome.actions) | _without_empty(optional)


def _reply(reply: ModelReply | None, failure: Failure | None) -> JsonObject:
    if reply is None:
        return _failed(failure)
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


def _failed(failure: Failure | None) -> JsonObject:
    if failure is None:
        return {}
    return {"failed": failure.error_type or failure.kind, **({"reason": failure.message} if failure.message else {})}
