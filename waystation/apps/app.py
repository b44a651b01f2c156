"""Apps, which combine a root agent with plugins and settings for its whole tree."""

import inspect
import re
from datetime import timedelta
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from waystation.agents import ApprovalRule, BaseAgent, ContextCacheConfig
from waystation.apps import BaseEventsSummarizer
from waystation.extensions import adapt_plugins
from waystation.plugins import BasePlugin, wrong_callbacks
from waystation.tools.resources import LIFESPAN_LIMIT, Lifespan

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*")


class ResumabilityConfig(BaseModel):
    """ADK's settings for resuming invocations. They have no effect, because all invocations can be resumed."""

    is_resumable: bool = False


class EventsCompactionConfig(BaseModel):
    """When to summarize older events, which keeps prompts small. The fields match ADK 2.13."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    summarizer: BaseEventsSummarizer | None = None
    """Writes the summaries. By default, the current agent's model writes them."""
    compaction_interval: int | None = Field(default=None, gt=0)
    """The number of new invocations in a session that triggers a summary."""
    overlap_size: int | None = Field(default=None, ge=0)
    """The number of already summarized invocations that the next summary includes again."""
    token_threshold: int | None = Field(default=None, gt=0)
    """The number of prompt tokens that triggers a summary. It is checked before each model call."""
    event_retention_size: int | None = Field(default=None, ge=0)
    """The number of most recent events that a summary triggered by `token_threshold` leaves out."""

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
    """A root agent with plugins and settings. A package can expose an `app` instead of a `root_agent`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    name: str
    root_agent: BaseAgent
    plugins: list[BasePlugin] = Field(default_factory=list)
    """Plugins for all agents. Those of google-adk are adapted."""
    approval_rules: list[ApprovalRule] = Field(default_factory=list)
    """Approval rules for all agents. The rules of tools and agents take precedence."""
    events_compaction_config: EventsCompactionConfig | None = None
    """When to summarize older events. If None, events are never summarized."""
    context_cache_config: ContextCacheConfig | None = None
    """Has no effect, because providers cache prompt prefixes automatically."""
    state_scopes: bool = True
    """Whether to load `user:` and `app:` state when an invocation starts. If False, reading it raises `ScopesNotRead`.
    """
    lifespan: Lifespan | None = None
    """Opens resources that tools share, such as a database pool. A function without parameters, decorated with
    `contextlib.asynccontextmanager`, that yields a dictionary, which tools read from `tool_context.resources`."""
    lifespan_limit: timedelta = Field(default=LIFESPAN_LIMIT, gt=timedelta(0))
    """How long the lifespan may take to open its resources, and again to close them."""
    resumability_config: ResumabilityConfig | None = None
    """Has no effect, because all invocations can be resumed."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or name == "user":
            raise ValueError(
                f"{name!r} is not a valid app name; start with a letter and use letters, digits, `_` and `-`. The name "
                "`user` is reserved."
            )
        return name

    @field_validator("lifespan")
    @classmethod
    def _check_lifespan(cls, lifespan: Lifespan | None) -> Lifespan | None:
        if lifespan and (inspect.isasyncgenfunction(lifespan) or inspect.signature(lifespan).parameters):
            raise ValueError(
                "`lifespan` is not valid. Pass a function without parameters, decorated with "
                "`contextlib.asynccontextmanager`. Apps of a worker that have the same lifespan share its resources."
            )
        return lifespan

    @field_validator("plugins", mode="before")
    @classmethod
    def _adapt_plugins(cls, plugins: Any) -> Any:
        return adapt_plugins(plugins) if isinstance(plugins, list) else plugins

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
