"""Events of an invocation in the form that ADK uses.

Field names and the JSON form (camelCase) match ADK 2.13. Content is genai's plain JSON, so unknown part fields such as
thought signatures pass through unchanged.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from waystation.core.budget import Usage
from waystation.core.payload import JsonObject, Recorded

UNUSABLE_REPLY = "unusable_reply"
"""Key in the custom metadata of the event of a reply after which the model is asked again."""
ENGINE_METADATA = frozenset(
    {
        "approval",
        "compaction_failed",
        "held",
        "ignored_answer",
        "not_notified",
        "partial_text",
        "state_not_stored",
        "unknown_outcome",
        UNUSABLE_REPLY,
    }
)
"""Keys in the `custom_metadata` of events that only the engine sets, because it and others read its facts there."""


class ToolConfirmation(Recorded):
    """The question to an approver before a tool runs, and the approver's answer."""

    hint: str = ""
    confirmed: bool = False
    payload: Any = None
    """Any JSON value."""


_ADK_JSON = ConfigDict(
    frozen=True, extra="ignore", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
)
"""Events are recorded with the Python field names; `to_json` uses ADK's names instead. Both can be parsed."""


class EventCompaction(Recorded):
    """A summary that replaces older events in prompts."""

    model_config: ClassVar[ConfigDict] = _ADK_JSON

    start_timestamp: float
    end_timestamp: float
    compacted_content: JsonObject
    """A genai Content as JSON."""

    @field_validator("compacted_content", mode="before")
    @classmethod
    def _as_json(cls, content: Any) -> Any:
        # Summarizers written for ADK return a genai Content. Core does not import genai, so it cannot check the type.
        dump = getattr(content, "model_dump", None)
        return dump(mode="json", by_alias=True, exclude_none=True) if dump else content


class Covered(Recorded):
    """The events that a summary replaces. Events are identified by ID because many events share a timestamp."""

    model_config: ClassVar[ConfigDict] = _ADK_JSON

    first: str
    """ID of the first event in the range. The summary appears in its place."""
    last: str
    """ID of the last event in the range. Events on branches that are not visible from the summary's branch are not
    covered."""
    kept: tuple[str, ...] = ()
    """IDs of events in the range that stay visible, such as open calls and the user's newest message."""
    count: int = 0
    """Number of events that the summary replaces, including those of the earlier summaries that it replaces."""


class EventActions(Recorded):
    """Effects of an event besides its content, such as state changes, transfers and requests for confirmation."""

    model_config: ClassVar[ConfigDict] = _ADK_JSON

    state_delta: JsonObject = Field(default_factory=dict)
    removed_keys: tuple[str, ...] = ()
    """State keys deleted with `del`. A key that is set to None is not deleted; None is stored as its value."""
    artifact_delta: dict[str, int] = Field(default_factory=dict)
    skip_summarization: bool | None = None
    transfer_to_agent: str | None = None
    transfer_reason: str | None = None
    escalate: bool | None = None
    requested_tool_confirmations: dict[str, ToolConfirmation] = Field(default_factory=dict)
    requested_auth_configs: dict[str, JsonObject] = Field(default_factory=dict)
    """The auth configs, without secrets, of the credentials that calls request, by function call ID."""
    render_ui_widgets: tuple[JsonObject, ...] = ()
    compaction: EventCompaction | None = None


NO_ACTIONS = EventActions()


class Event(Recorded):
    """An event as readers see it."""

    model_config: ClassVar[ConfigDict] = _ADK_JSON

    id: str = ""
    """The event ID. Empty only for a summary that has not been recorded yet."""
    invocation_id: str
    author: str
    """`user`, the name of an agent, or `waystation` if the invocation failed before an agent was known."""
    branch: str | None = None
    """Path of the enclosing parallel agents and their children, such as `parallel.child`, or None outside parallel
    agents. Agents on sibling branches do not see the event."""
    timestamp: float = 0.0
    """Seconds since 1970, according to the workflow's clock."""
    content: JsonObject | None = None
    actions: EventActions = Field(default_factory=EventActions)
    long_running_tool_ids: tuple[str, ...] | None = None
    error_code: str | None = None
    error_message: str | None = None
    finish_reason: str | None = None
    usage_metadata: JsonObject | None = None
    model_version: str | None = None
    grounding_metadata: JsonObject | None = None
    citation_metadata: JsonObject | None = None
    partial: bool | None = None
    custom_metadata: JsonObject | None = None
    covered: Covered | None = None
    """If the event is a summary, the events that it replaces. ADK does not have this field, and ADK clients ignore
    it."""

    @staticmethod
    def new_id() -> str:
        """Return an empty ID. Summarizers written for ADK call this method, but the engine generates the IDs."""
        return ""

    @property
    def index(self) -> int | None:
        """Index of the event in its invocation, starting at 0. None for partial text and for events without an ID."""
        number = self.id.rpartition("/e")[2]
        return int(number) - 1 if not self.partial and number.isdecimal() else None

    def to_json(self) -> JsonObject:
        """Return the event in ADK's JSON form. Fields with default values are left out."""
        event = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        for confirmation in event.get("actions", {}).get("requestedToolConfirmations", {}).values():
            confirmation.setdefault("confirmed", False)  # required by ADK's clients
        return event

    def function_calls(self) -> list[JsonObject]:
        """Return the function calls in the content, in order."""
        return parts_of(self.content, "functionCall")

    def function_responses(self) -> list[JsonObject]:
        """Return the function responses in the content, in order."""
        return parts_of(self.content, "functionResponse")

    def is_final_response(self) -> bool:
        """Return whether the event ends the agent's turn, by the same rule as in ADK 2.13."""
        if self.actions.skip_summarization or self.long_running_tool_ids:
            return True
        return not (self.function_calls() or self.function_responses() or self.partial)


Trigger = Literal["token_threshold", "sliding_window"]


class Compaction(Recorded):
    """An attempt to summarize older events before a model call."""

    trigger: Trigger
    covered: Covered
    start_timestamp: float
    end_timestamp: float
    content: JsonObject | None = None
    """The summary, a genai Content as JSON. None if the attempt failed; `failure` then gives the reason."""
    failure: str | None = None
    usage: Usage | None = None
    model: str | None = None

    def actions(self) -> EventActions | None:
        """Return the actions of the summary's event, or None if there is no summary."""
        if self.content is None:
            return None
        return EventActions(
            compaction=EventCompaction(
                start_timestamp=self.start_timestamp, end_timestamp=self.end_timestamp, compacted_content=self.content
            )
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields that the summary's event has in addition to its actions."""
        return {
            "covered": self.covered,
            "usage_metadata": self.usage.model_dump(exclude_defaults=True) if self.usage else None,
            "model_version": self.model,
        }

    def event(self, invocation_id: str, branch: str | None) -> Event | None:
        """Return the summary's event for the next prompt, or None if the attempt failed.

        The prompt is built before the event is recorded, so the event has no ID yet.
        """
        if (actions := self.actions()) is None:
            return None
        return Event(invocation_id=invocation_id, author="user", branch=branch, actions=actions, **self.fields())

    def failed(self) -> JsonObject | None:
        """Return custom metadata for the event of the model's reply, or None if the attempt did not fail."""
        return {"compaction_failed": {"trigger": self.trigger, "reason": self.failure}} if self.failure else None


def parts_of(content: JsonObject | None, kind: str) -> list[JsonObject]:
    """Return the values of all parts that have the key `kind` (`functionCall` or `functionResponse`), in order."""
    return [part[kind] for part in (content or {}).get("parts") or () if part.get(kind)]


def texts_of(content: JsonObject | None) -> list[str]:
    """Return the text of each part of a `Content` that has any. Thoughts are left out."""
    parts = (content or {}).get("parts") or ()
    return [part["text"] for part in parts if part.get("text") and not part.get("thought")]


def text_of(content: JsonObject | None) -> str:
    """Return the visible text of a `Content`, joined from all its text parts. Thoughts are left out."""
    return "".join(texts_of(content))


def merge_actions(batch: Sequence[EventActions]) -> EventActions:
    """Merge the actions of a batch of calls, which must be in call order rather than completion order.

    Later calls take precedence over earlier ones, and `state_delta` is merged recursively, as in ADK 2.13.
    """
    batch = [actions for actions in batch if actions is not NO_ACTIONS]
    if len(batch) < 2:
        return batch[0] if batch else NO_ACTIONS
    merged = EventActions()
    state: JsonObject = {}
    removed: dict[str, None] = {}
    for actions in batch:
        for key in actions.removed_keys:
            state.pop(key, None)
            removed[key] = None
        for key in actions.state_delta:
            removed.pop(key, None)
        _deep_merge(state, actions.state_delta)
        scalars = {
            name: value
            for name in ("skip_summarization", "transfer_to_agent", "transfer_reason", "escalate")
            if (value := getattr(actions, name)) is not None
        }
        merged = merged.model_copy(
            update={
                **scalars,
                "artifact_delta": {**merged.artifact_delta, **actions.artifact_delta},
                "requested_tool_confirmations": {
                    **merged.requested_tool_confirmations,
                    **actions.requested_tool_confirmations,
                },
                "requested_auth_configs": {**merged.requested_auth_configs, **actions.requested_auth_configs},
                "render_ui_widgets": (*merged.render_ui_widgets, *actions.render_ui_widgets),
            }
        )
    return merged.model_copy(update={"state_delta": state, "removed_keys": tuple(removed)})


def _deep_merge(target: JsonObject, delta: JsonObject) -> None:
    for key, value in delta.items():
        present = target.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            target[key] = merged = dict(present)
            _deep_merge(merged, value)
        else:
            target[key] = value


def is_visible_on(branch: str | None, event_branch: str | None) -> bool:
    """Return whether a branch sees an event.

    It does if the event's branch is the same or an ancestor, or if either branch is unset.
    """
    return not branch or not event_branch or f"{branch}.".startswith(f"{event_branch}.")


def message_problem(message: str | JsonObject) -> str | None:
    """Return why a user may not send this message, or None if it is valid. A plain string is always valid."""
    if isinstance(message, str):
        return None
    parts = message.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return "a content is an object with a list of `parts`, each an object."
    if any("functionCall" in part or "function_call" in part for part in parts):
        return "a user's message cannot contain function calls."
    if any("functionResponse" in part or "function_response" in part for part in parts):
        return "a user's message cannot contain function responses; send the signal `answer` instead."
    return None


def user_content(message: str | JsonObject) -> JsonObject:
    """Return a user's message as a genai Content in camelCase JSON."""
    if isinstance(message, str):
        return {"role": "user", "parts": [{"text": message}]}
    return {"role": message.get("role") or "user", "parts": [camel_part(part) for part in message["parts"]]}


def camel_part(part: JsonObject) -> JsonObject:
    """Return a genai Part with camelCase keys at its top two levels and without nulls there.

    genai accepts both camelCase and snake_case.
    """

    def camel(name: str) -> str:
        head, *tail = name.split("_")
        return head + "".join(word.title() for word in tail)

    def shallow(value: Any) -> Any:
        return (
            {camel(key): item for key, item in value.items() if item is not None} if isinstance(value, dict) else value
        )

    return {camel(key): shallow(value) for key, value in part.items() if value is not None}
