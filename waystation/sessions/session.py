"""The copy of a session that session services return. Mirrors ADK's `google.adk.sessions.session` module."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from waystation.events import Event


class Session(BaseModel):
    """A copy of a session. Changes to it are not recorded; pass `state_delta` to the runner instead."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    id: str
    app_name: str
    user_id: str
    state: dict[str, Any] = Field(default_factory=dict)
    events: list[Event] = Field(default_factory=list)
    last_update_time: float = 0.0
    """Time of the last event, in seconds since 1970."""
