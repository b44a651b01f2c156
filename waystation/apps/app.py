"""A root agent with the plugins that accompany every agent of its tree."""

import re
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from waystation.agents import ApprovalRule, BaseAgent, ContextCacheConfig
from waystation.apps import BaseEventsSummarizer
from waystation.plugins import BasePlugin, misdeclared

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*")


class ResumabilityConfig(BaseModel):
    """Whether invocations can be resumed. Accepted and without effect: here every one can."""

    is_resumable: bool = False


class EventsCompactionConfig(BaseModel):
    """When older events are summarised, so that prompts stay small. Source: `apps/_configs.py` of ADK 2.13."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    summarizer: BaseEventsSummarizer | None = None
    """What writes summaries; the model of the agent that is about to be asked unless given."""
    compaction_interval: int | None = Field(default=None, gt=0)
    """After how many further invocations of a session a summary is due."""
    overlap_size: int | None = Field(default=None, ge=0)
    """How many invocations before those a summary covers once more."""
    token_threshold: int | None = Field(default=None, gt=0)
    """From how many tokens of the prompt on a summary is due. Checked before each call of a model."""
    event_retention_size: int | None = Field(default=None, ge=0)
    """How many of the newest events then stay as they are."""

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
    """What a package may expose as `app` instead of `root_agent`. Source: adk-semantics 0.9."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    name: str
    root_agent: BaseAgent
    plugins: list[BasePlugin] = Field(default_factory=list)
    approval_rules: list[ApprovalRule] = Field(default_factory=list)
    """Which calls of any agent need a person, after what its tool and the agent itself say."""
    events_compaction_config: EventsCompactionConfig | None = None
    """When older events are summarised; never unless given."""
    context_cache_config: ContextCacheConfig | None = None
    """Accepted and without effect: providers cache the prefixes of prompts unasked."""
    state_scopes: bool = True
    """Whether `user:` and `app:` state is read when an invocation begins. Without it, reading a key raises
    `ScopesNotRead`."""
    resumability_config: ResumabilityConfig | None = None
    """Accepted and without effect: every invocation can be resumed."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or name == "user":
            raise ValueError(
                f"{name!r} cannot be an app's name; begin with a letter, go on with letters, digits, `_` and `-`; "
                "`user` is taken."
            )
        return name

    @field_validator("plugins")
    @classmethod
    def _check_plugins(cls, plugins: list[BasePlugin]) -> list[BasePlugin]:
        names = [plugin.name for plugin in plugins]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"Plugin with name '{name}' already registered.")
        if mistakes := [mistake for plugin in plugins for mistake in misdeclared(plugin)]:
            raise ValueError(" ".join(mistakes))
        return plugins
