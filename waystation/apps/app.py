"""Apps: a root agent with plugins and settings for its whole tree."""

import re
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from waystation.agents import ApprovalRule, BaseAgent, ContextCacheConfig
from waystation.apps import BaseEventsSummarizer
from waystation.plugins import BasePlugin, wrong_callbacks

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*")


class ResumabilityConfig(BaseModel):
    """Whether invocations can be resumed. Accepted without effect: all invocations can."""

    is_resumable: bool = False


class EventsCompactionConfig(BaseModel):
    """When to summarize older events, to keep prompts small. Source: `apps/_configs.py` of ADK 2.13."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    summarizer: BaseEventsSummarizer | None = None
    """Writes the summaries. By default, the current agent's model does."""
    compaction_interval: int | None = Field(default=None, gt=0)
    """Number of new invocations in a session that trigger a summary."""
    overlap_size: int | None = Field(default=None, ge=0)
    """Number of earlier invocations that the next summary covers again."""
    token_threshold: int | None = Field(default=None, gt=0)
    """Number of prompt tokens that triggers a summary. Checked before each model call."""
    event_retention_size: int | None = Field(default=None, ge=0)
    """Number of newest events that are not summarized."""

    @model_validator(mode="after")
    def _check_triggers(self) -> Self:
        if (self.token_threshold is None) != (self.event_retention_size is None):
            raise ValueError("token_threshold and event_retention_size must be set together.")
        if (self.compaction_interval is None) != (self.overlap_size is None):
            raise ValueError("compaction_interval and overlap_size must be set together.")
        if self.token_threshold is None and self.compaction_interval is None:
            raise ValueError(
                "At least one compaction trigger must be configured: the token-threshold pair or the sliding-window"
                " pair."
            )
        return self


class App(BaseModel):
    """An app, which a package exposes as `app` instead of `root_agent`. Source: adk-semantics 0.9."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    name: str
    root_agent: BaseAgent
    plugins: list[BasePlugin] = Field(default_factory=list)
    approval_rules: list[ApprovalRule] = Field(default_factory=list)
    """Approval rules for all agents. The rules of tools and agents come first."""
    events_compaction_config: EventsCompactionConfig | None = None
    """When to summarize older events. None: never."""
    context_cache_config: ContextCacheConfig | None = None
    """Accepted without effect: providers cache prompt prefixes automatically."""
    state_scopes: bool = True
    """Whether to load `user:` and `app:` state when an invocation begins. If False, reading such a key raises
    `ScopesNotRead`."""
    resumability_config: ResumabilityConfig | None = None
    """Accepted without effect: all invocations can be resumed."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or name == "user":
            raise ValueError(
                f"{name!r} is not a valid app name; start with a letter and use letters, digits, `_` and `-`. The name "
                "`user` is reserved."
            )
        return name

    @field_validator("plugins")
    @classmethod
    def _check_plugins(cls, plugins: list[BasePlugin]) -> list[BasePlugin]:
        names = [plugin.name for plugin in plugins]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"Plugin with name '{name}' already registered.")
        if mistakes := [mistake for plugin in plugins for mistake in wrong_callbacks(plugin)]:
            raise ValueError(" ".join(mistakes))
        return plugins
