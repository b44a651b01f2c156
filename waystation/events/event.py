"""Events with genai's types, which author code and runners' callers receive. Mirrors ADK's `google.adk.events.event`.

Workers record and clients read `waystation.core.contract.Event`, whose contents are plain JSON.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, ClassVar, Self

from google.genai import types
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer, model_validator
from pydantic.alias_generators import to_camel

from waystation.core import contract
from waystation.core.budget import GENAI_COUNTS
from waystation.core.payload import JsonObject, copy_json
from waystation.events.event_actions import EventActions

__all__ = ["Event"]


class Event(BaseModel):
    """An event of a conversation. Field names, defaults and methods match ADK 2.13."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    id: str = Field(default_factory=lambda: Event.new_id())
    invocation_id: str = ""
    author: str = ""
    branch: str | None = None
    timestamp: float = Field(default_factory=time.time)
    content: types.Content | None = None
    actions: EventActions = Field(default_factory=EventActions)
    long_running_tool_ids: set[str] | None = None
    partial: bool | None = None
    turn_complete: bool | None = None
    interrupted: bool | None = None
    finish_reason: types.FinishReason | None = None
    error_code: str | None = None
    error_message: str | None = None
    model_version: str | None = None
    usage_metadata: types.GenerateContentResponseUsageMetadata | None = None
    grounding_metadata: types.GroundingMetadata | None = None
    citation_metadata: types.CitationMetadata | None = None
    custom_metadata: JsonObject | None = None

    @field_serializer("long_running_tool_ids")
    def _sort_ids(self, ids: set[str] | None) -> list[str] | None:
        return None if ids is None else sorted(ids)

    @staticmethod
    def new_id() -> str:
        """Return a random ID."""
        return str(uuid.uuid4())

    @model_validator(mode="before")
    @classmethod
    def _accept_short_forms(cls, data: Any) -> Any:
        """Accept ADK's arguments `message`, for `content`, and `state`, for `actions.state_delta`."""
        if not isinstance(data, dict) or not data.keys() & {"message", "state"}:
            return data
        fields = dict(data)
        if (message := fields.pop("message", None)) is not None:
            if fields.get("content") is not None:
                raise ValueError("'message' and 'content' are mutually exclusive. Use one or the other.")
            fields["content"] = _as_content(message)
        if (state := fields.pop("state", None)) is not None:
            actions = EventActions.model_validate(fields.get("actions") or {})
            fields["actions"] = actions.model_copy(update={"state_delta": state})
        return fields

    @classmethod
    def from_recorded(cls, event: contract.Event) -> Self:
        """Return a copy of a recorded event.

        Its content has no parts if the installed version of genai cannot represent them.
        """
        fields: dict[str, Any] = {
            name: copy_json(value) if isinstance(value, dict) else value
            for name in cls.model_fields
            if (value := getattr(event, name, None)) is not None
        }
        fields |= {"id": event.id or cls.new_id(), "actions": EventActions.from_recorded(event.actions)}
        if event.content:
            try:
                fields["content"] = to_content(event.content)
            except ValidationError:  # content that is newer than the installed types
                fields["content"] = types.Content(role=event.content.get("role"), parts=[])
        if usage := event.usage_metadata:
            fields["usage_metadata"] = to_usage_metadata(usage)
        return cls.model_validate(fields)

    @property
    def message(self) -> types.Content | None:
        """The same as `content`."""
        return self.content

    @message.setter
    def message(self, message: Any) -> None:
        self.content = None if message is None else _as_content(message)

    def get_function_calls(self) -> list[types.FunctionCall]:
        """Return the function calls in the content, in order."""
        return [part.function_call for part in self._parts() if part.function_call]

    def get_function_responses(self) -> list[types.FunctionResponse]:
        """Return the function responses in the content, in order."""
        return [part.function_response for part in self._parts() if part.function_response]

    def has_trailing_code_execution_result(self) -> bool:
        """Return whether the last part of the content is the result of code that ran."""
        parts = self._parts()
        return bool(parts) and parts[-1].code_execution_result is not None

    def is_final_response(self) -> bool:
        """Return whether the event ends the agent's turn, by the same rule as in ADK 2.13."""
        if self.actions.skip_summarization or self.long_running_tool_ids:
            return True
        calls = self.get_function_calls()
        if self.error_code and not self.partial and not calls:
            return True
        return not (calls or self.get_function_responses() or self.partial or self.has_trailing_code_execution_result())

    def _parts(self) -> list[types.Part]:
        return (self.content and self.content.parts) or []


def _as_content(message: Any) -> types.Content:
    """Convert text, a Part or a list of these to a Content of the user. A Content is returned unchanged."""
    return (
        types.Content.model_validate(message)
        if isinstance(message, types.Content | dict)
        else types.UserContent(message)
    )


def to_usage_metadata(usage: JsonObject) -> types.GenerateContentResponseUsageMetadata:
    """Convert recorded token counts to genai's type."""
    return types.GenerateContentResponseUsageMetadata.model_validate(
        {GENAI_COUNTS[name]: count for name, count in usage.items() if name in GENAI_COUNTS}
    )


def to_content(content: JsonObject) -> types.Content:
    """Convert recorded content to genai's type. Fields of parts that genai does not know are left out."""
    known = {name for field, info in types.Part.model_fields.items() for name in (field, info.alias)}
    parts = [{key: value for key, value in part.items() if key in known} for part in content.get("parts") or ()]
    # Copy the parts: genai's types keep references to arguments and responses, which belong to the log.
    return types.Content.model_validate({"role": content.get("role"), "parts": copy_json(parts)})
