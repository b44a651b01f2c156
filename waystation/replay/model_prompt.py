"""The prompt of a model call at a given moment of a recording.

Histories do not contain prompts. The contents are rebuilt from the log. The instruction, tools and settings are taken
from the agent, because only their digest was recorded with each reply.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from waystation.core import AgentRun, JsonObject, Log, ModelReply
from waystation.replay.displayable import Displayable

if TYPE_CHECKING:
    from waystation.apps.registry import Registry

Agents: TypeAlias = Union["Registry", Path, str, Sequence[Path | str]]
"""A registry of agents, or the folders that contain the agents, as in a worker's `--agents` option."""


@dataclass(frozen=True, kw_only=True)
class Prompt(Displayable):
    """The prompt that a model received or would have received."""

    at: int
    """Number of the event that the prompt was requested for."""
    agent: str
    """Name of the agent."""
    call: int | None
    """Number of the model call in the invocation that the prompt belongs to, or None if that call was never made."""
    gave: int | None
    """Number of the event that contains the reply, or None if there is no reply."""
    contents: Sequence[JsonObject]
    """The conversation as genai `Content` objects in JSON form, oldest first."""
    model: str | None = None
    instruction: str | None = None
    tools: Sequence[JsonObject] = ()
    """Declarations of the functions that the model could call."""
    native_tools: Sequence[JsonObject] = ()
    """Tools that the model provider runs."""
    config: JsonObject = field(default_factory=dict)
    """The generation config."""
    whole: bool = False
    """Whether the agent was available. If not, the prompt has only contents."""
    exact: bool | None = None
    """True if this is exactly the original prompt. False if the agent has changed since then, so that this is its
    current prompt. None if unknown; see `remarks`."""
    remarks: Sequence[str] = ()
    """Notes on what limits the reconstruction."""


@dataclass(frozen=True, slots=True)
class PromptContext:
    """A model call that was made or that would come next, and the log as it was at that time."""

    log: Log
    """The log just before the model was called or, if it was not called, at the requested moment."""
    work: AgentRun
    call: int | None
    reply: ModelReply | None
    gave: int | None
    wrap_up: str | None = None
