"""Prompts at the moments of a recording.

Histories hold what was said and what came of it, not prompts. The contents follow from the log; the instruction, the
tools and the settings are the agent's, and only a digest of them was recorded with each reply.
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
"""Agents that are there already, or the folders in which they are found, as for a worker's `--agents`."""


@dataclass(frozen=True, kw_only=True)
class Prompt(Displayable):
    """What a model was, or would have been, shown."""

    at: int
    """Number of the event that was asked about."""
    agent: str
    """Whose model it is."""
    call: int | None
    """Which model call of the invocation; None when no model was called after the event."""
    gave: int | None
    """Number of the event with the reply, when there is one."""
    contents: Sequence[JsonObject]
    """The conversation as the model is shown it, oldest first: genai Contents as JSON."""
    model: str | None = None
    instruction: str | None = None
    tools: Sequence[JsonObject] = ()
    """What the model could call, as it was declared to it."""
    native_tools: Sequence[JsonObject] = ()
    """Tools that the provider runs itself."""
    config: JsonObject = field(default_factory=dict)
    """Settings of the generation."""
    whole: bool = False
    """Whether the agent was at hand; without it there are only contents."""
    exact: bool | None = None
    """True: exactly what the model saw. False: the agent has changed since, and this is how it is now. None: nobody
    can tell; `remarks` say why."""
    remarks: Sequence[str] = ()
    """What one has to know before relying on it."""


@dataclass(frozen=True, slots=True)
class PromptContext:
    """A model call, as far as the log tells."""

    log: Log
    """As it was when the model was called."""
    work: AgentRun
    call: int | None
    reply: ModelReply | None
    gave: int | None
    wrap_up: str | None = None
