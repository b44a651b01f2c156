"""The effects of an event, with genai's types. Mirrors ADK's `google.adk.events.event_actions` module."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from google.genai import types
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from waystation.core import contract
from waystation.core.contract import ToolConfirmation
from waystation.core.payload import JsonObject

__all__ = ["EventActions", "EventCompaction"]

_ADK_MODEL = ConfigDict(extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)


class EventCompaction(BaseModel):
    """A summary that replaces older events in prompts."""

    model_config: ClassVar[ConfigDict] = _ADK_MODEL

    start_timestamp: float
    end_timestamp: float
    compacted_content: types.Content


class EventActions(BaseModel):
    """Effects of an event besides its content. Field names and defaults match ADK 2.13."""

    model_config: ClassVar[ConfigDict] = _ADK_MODEL

    skip_summarization: bool | None = None
    state_delta: dict[str, Any] = Field(default_factory=dict)
    removed_keys: tuple[str, ...] = ()
    """State keys deleted with `del`. ADK does not have this field."""
    artifact_delta: dict[str, int] = Field(default_factory=dict)
    transfer_to_agent: str | None = None
    transfer_reason: str | None = None
    escalate: bool | None = None
    requested_auth_configs: dict[str, JsonObject] = Field(default_factory=dict)
    """The auth configs, without secrets, of the credentials that calls request, by function call ID."""
    requested_tool_confirmations: dict[str, ToolConfirmation] = Field(default_factory=dict)
    compaction: EventCompaction | None = None
    render_ui_widgets: list[JsonObject] | None = None

    @classmethod
    def from_recorded(cls, actions: contract.EventActions) -> Self:
        """Return a changeable copy of recorded actions."""
        return cls.model_validate(actions.model_dump(exclude_defaults=True))
