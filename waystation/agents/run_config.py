"""How one invocation is asked to run."""

from enum import Enum
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from waystation.core import MAX_MODEL_CALLS, Budget, JsonObject

_ACCEPTED = ("tool_thread_pool_config", "telemetry", "get_session_config")
"""Fields of ADK's RunConfig that change nothing here, such as that sync tools run in threads: they always do."""


class StreamingMode(Enum):
    """Whether text is shown while a model still says it. ADK's third mode, `BIDI`, is for live audio."""

    NONE = None
    SSE = "sse"


class RunConfig(BaseModel):
    """What ADK's RunConfig says and this engine can do; other fields are refused. Source: adk-semantics 0.8.

    `max_llm_calls` becomes the invocation's budget, `custom_metadata` its metadata, `streaming_mode` its `streaming`.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    max_llm_calls: int = MAX_MODEL_CALLS
    custom_metadata: JsonObject | None = None
    streaming_mode: StreamingMode = StreamingMode.NONE
    ignored: tuple[str, ...] = Field(default=(), exclude=True)
    """Names of the fields that were given, accepted and change nothing."""

    @model_validator(mode="before")
    @classmethod
    def _set_aside(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        ignored = tuple(name for name in _ACCEPTED if data.get(name) is not None)
        return {key: value for key, value in data.items() if key not in _ACCEPTED} | {"ignored": ignored}

    @field_validator("max_llm_calls")
    @classmethod
    def _check_limit(cls, limit: int) -> int:
        if limit < 1:
            raise ValueError(f"{limit} would let the model never be called; ADK's `unlimited` is not supported.")
        return limit

    @property
    def streaming(self) -> bool:
        """Whether to start an invocation with `streaming`."""
        return self.streaming_mode is StreamingMode.SSE

    def budget(self) -> Budget:
        """Return the budget to start an invocation with."""
        return Budget(max_llm_calls=self.max_llm_calls)
