"""A root agent with the plugins that accompany every agent of its tree."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from waystation.agents.base_agent import BaseAgent
from waystation.plugins.base_plugin import BasePlugin, misdeclared


class App(BaseModel):
    """What a package may expose as `app` instead of `root_agent`. Source: adk-semantics 0.9."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    name: str
    root_agent: BaseAgent
    plugins: list[BasePlugin] = Field(default_factory=list)
    resumability_config: Any = None
    """Accepted and without effect: every invocation can be resumed."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name.isidentifier() or name == "user":
            raise ValueError(f"{name!r} cannot be an app's name; use letters, digits and underscores, and not `user`.")
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
