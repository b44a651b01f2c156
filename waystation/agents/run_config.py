"""Options for one invocation."""

from enum import Enum
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from waystation.core.budget import MAX_MODEL_CALLS, Budget
from waystation.core.payload import JsonObject

_ACCEPTED = ("tool_thread_pool_config", "telemetry", "get_session_config")
"""Fields of ADK's RunConfig that are accepted but have no effect."""


class StreamingMode(Enum):
    """Whether clients receive partial text. ADK's `BIDI` mode, for live audio, is not supported."""

    NONE = None
    SSE = "sse"


class RunConfig(BaseModel):
    """The supported fields of ADK's RunConfig. Some others are accepted but ignored, and the rest are rejected.

    `max_llm_calls` sets the invocation's budget, `custom_metadata` sets its metadata, and `streaming_mode` sets
    `streaming`.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    max_llm_calls: int = MAX_MODEL_CALLS
    custom_metadata: JsonObject | None = None
    streaming_mode: StreamingMode = StreamingMode.NONE
    ignored: tuple[str, ...] = Field(default=(), exclude=True)
    """Names of the fields that were set but have no effect."""

    @model_validator(mode="before")
    @classmethod
    def _ignore_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        ignored = tuple(name for name in _ACCEPTED if data.get(name) is not None)
        return {key: value for key, value in data.items() if key not in _ACCEPTED} | {"ignored": ignored}

    @field_validator("max_llm_calls")
    @classmethod
    def _check_limit(cls, limit: int) -> int:
        if limit < 1:
            raise ValueError(
                f"{limit} would not allow any model calls; use 1 or more. ADK's `unlimited` is not supported."
            )
        return limit

    @property
    def streaming(self) -> bool:
        """Whether to start the invocation with `streaming`."""
        return self.streaming_mode is StreamingMode.SSE

    def budget(self) -> Budget:
        """Return the budget that the invocation starts with."""
        return Budget(max_llm_calls=self.max_llm_calls)
