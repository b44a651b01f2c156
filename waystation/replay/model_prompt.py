"""The prompt of a model call at a given moment of a recording.

Histories do not contain prompts. The contents are rebuilt from the log. The instruction, tools and settings are taken
from the agent, because only their digest was recorded with each reply.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from rich.console import Group, RenderableType
from rich.text import Text

from waystation.core.contract import ModelReply
from waystation.core.log import AgentRun, Log
from waystation.core.payload import JsonObject
from waystation.presentation import terminal
from waystation.replay.displayable import Displayable
from waystation.replay.recording_views import BOLD, DIM, format_content, section

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

    def __rich__(self) -> RenderableType:
        which = f"model call {self.call}" if self.call else "no model call follows; its prompt would be"
        reply = f", which made event {self.gave}" if self.gave else ""
        title = Text.assemble((f"prompt at event {self.at}", BOLD), f"  {terminal.escape(self.agent)}, {which}{reply}")
        match self.exact:
            case True:
                verdict = Text("exactly what the model saw: the agent has not changed", "green")
            case False:
                verdict = Text("not what the model saw: the agent has changed since", "bold yellow")
            case _:
                verdict = Text("incomplete:" if self.remarks else "rebuilt from the log", "yellow")
        parts: list[RenderableType] = [title, verdict, *(Text(terminal.escape(remark), DIM) for remark in self.remarks)]
        if self.whole:
            settings = terminal.clip_json({"model": self.model, **self.config}, terminal.MAX_TEXT)
            lines = terminal.clip(self.instruction or "none").splitlines()
            parts += [
                section("settings", Text(settings)),
                section("instruction", Text("\n".join(map(terminal.escape, lines)))),
                section(f"tools ({len(self.tools) + len(self.native_tools)})", *self._list_tools()),
            ]
        return Group(*parts, section(f"contents ({len(self.contents)})", *map(format_content, self.contents)))

    def _list_tools(self) -> Iterator[Text]:
        for tool in self.tools:
            names = ", ".join((tool.get("parametersJsonSchema") or {}).get("properties") or ())
            description = str(tool.get("description") or "").strip().split("\n")[0]
            name = terminal.escape(str(tool.get("name")))
            yield Text.assemble(
                (name, "yellow"), terminal.escape(f"({names})"), "  ", (terminal.escape(description), DIM)
            )
        for tool in self.native_tools:
            yield Text(terminal.clip_json(tool), "yellow")


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
