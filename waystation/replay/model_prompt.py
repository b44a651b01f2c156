"""The prompt of a model call at a moment of a recording.

Histories do not hold prompts. The contents are rebuilt from the log. Instruction, tools and settings come from the
agent; only their digest was recorded with each reply.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from waystation.core import AgentRun, JsonObject, Log, ModelReply
from waystation.replay.displayable import Displayable

if TYPE_CHECKING:
    from waystation.agents.registry import Registry

Agents: TypeAlias = Union["Registry", Path, str, Sequence[Path | str]]
"""A registry of agents, or the folders of agents, as for a worker's `--agents`."""


@dataclass(frozen=True, kw_only=True)
class Prompt(Displayable):
    """The prompt that a model got, or would have got."""

    at: int
    """Number of the event."""
    agent: str
    """Name of the agent."""
    call: int | None
    """Number of the model call in the invocation; None if no model was called after the event."""
    gave: int | None
    """Number of the event with the reply, if there is one."""
    contents: Sequence[JsonObject]
    """The conversation, oldest first: genai Contents as JSON."""
    model: str | None = None
    instruction: str | None = None
    tools: Sequence[JsonObject] = ()
    """Declarations of the functions that the model could call."""
    native_tools: Sequence[JsonObject] = ()
    """Tools that the model provider runs."""
    config: JsonObject = field(default_factory=dict)
    """The generation config."""
    whole: bool = False
    """Whether the agent was available. Without it the prompt has only contents."""
    exact: bool | None = None
    """True: exactly the original prompt. False: the agent has changed since, and this is its present prompt. None:
    unknown; see `remarks`."""
    remarks: Sequence[str] = ()
    """Limits of the reconstruction."""


@dataclass(frozen=True, slots=True)
class PromptContext:
    """A model call and the log at that time."""

    log: Log
    """The log just before the model was called."""
    work: AgentRun
    call: int | None
    reply: ModelReply | None
    gave: int | None
    wrap_up: str | None = None
