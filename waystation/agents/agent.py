"""Agents, as authors declare them.

An agent is a declaration: the workflow never sees it. Activities look it up by name, so an edited agent takes effect at
the next model call, also in invocations that are already waiting.
"""

from __future__ import annotations

import keyword
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from waystation.models import BaseLlm

RESERVED_NAMES = frozenset({"user"})


class BaseAgent(BaseModel):
    """What every agent has: a name and a description."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    name: str
    description: str = ""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        # ADK's rule: names appear in prompts, activity types and state keys.
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{name!r} is no identifier; use letters, digits and underscores.")
        if name in RESERVED_NAMES:
            raise ValueError(f"{name!r} is reserved for the person who talks to the agent.")
        return name


class LlmAgent(BaseAgent):
    """An agent that a language model drives. `Agent` is the same class."""

    model: str | BaseLlm = "gemini-2.5-flash"
    instruction: str = ""
    tools: list[Any] = Field(default_factory=list)
    """Functions, `BaseTool`s."""
    generate_content_config: Any = None
    """A genai `GenerateContentConfig`, or the same as a dictionary."""

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, tools: list[Any]) -> list[Any]:
        for tool in tools:
            if isinstance(tool, BaseAgent):
                raise ValueError(
                    f"Agent {tool.name!r} cannot be used directly as a tool. Wrap it in AgentTool(agent=...)."
                )
        return tools


Agent = LlmAgent
