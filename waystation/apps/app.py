"""A root agent with the plugins that accompany every agent of its tree."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from waystation.agents.approval_rule import ApprovalRule
from waystation.agents.base_agent import BaseAgent
from waystation.agents.context_cache_config import ContextCacheConfig
from waystation.apps.configs import EventsCompactionConfig, ResumabilityConfig
from waystation.plugins.base_plugin import BasePlugin, misdeclared

__all__ = ["App", "EventsCompactionConfig", "ResumabilityConfig"]

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*")


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
        for plugin in plugins:
            if mistakes := misdeclared(plugin):
                raise ValueError(" ".join(mistakes))
        return plugins
