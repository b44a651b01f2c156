"""Mirrors ADK's `google.adk.agents.context_cache_config` module."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class ContextCacheConfig(BaseModel):
    """ADK's settings for prompt caching. They have no effect, because providers cache prompt prefixes automatically."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    cache_intervals: int = Field(default=10, ge=1, le=100)
    ttl_seconds: int = Field(default=1800, gt=0)
    min_tokens: int = Field(default=0, ge=0)
    create_http_options: Any = None
