"""What every agent has: a name, a description, agents below it, callbacks around it.

An agent is a declaration: the workflow never sees it. Activities look it up by name, so an edited agent takes effect at
the next model call, also in invocations that are already waiting.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator

RESERVED_NAMES = frozenset({"user"})

Callbacks: TypeAlias = Callable[..., Any] | list[Callable[..., Any]] | None
"""One callback or several, sync or async; in a list the first that answers ends the chain."""

CODE_OF_ITS_OWN = ("run_async", "run_live", "_run_async_impl", "_run_live_impl", "_run_impl")
"""What ADK's agents override to run code between events."""


class BaseAgent(BaseModel):
    """An agent. Only `LlmAgent` and the composite agents can be carried out; write what is special as tools."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    name: str
    description: str = ""
    parent_agent: BaseAgent | None = Field(default=None, init=False, exclude=True, repr=False)
    """The agent in whose `sub_agents` this one was when that agent was made."""
    sub_agents: list[BaseAgent] = Field(default_factory=list)
    before_agent_callback: Callbacks = None
    """`(callback_context)`; a Content that it returns is said instead of running the agent."""
    after_agent_callback: Callbacks = None
    """`(callback_context)`; a Content that it returns is said after the agent is done."""

    def __eq__(self, other: object) -> bool:
        # Without the parent: it holds this agent, so pydantic's comparison would never end.
        fields = type(self).model_fields.keys() - {"parent_agent"}
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in fields)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a class that brings code of its own for running.

        Raises:
            TypeError: It does.
        """
        super().__init_subclass__(**kwargs)
        own = next((name for name in CODE_OF_ITS_OWN if name in cls.__dict__), None)
        if own is not None:
            raise TypeError(
                f"The agent class {cls.__name__!r} defines `{own}`, which cannot be carried out: between events an "
                "agent runs in the workflow, where no code of yours may run, since it has to replay. Compose LlmAgent, "
                "SequentialAgent, ParallelAgent and LoopAgent, and put code into tools and callbacks."
            )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        # ADK's rule: names appear in prompts, activity types and state keys.
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{name!r} is no identifier; use letters, digits and underscores.")
        if name in RESERVED_NAMES:
            raise ValueError(f"{name!r} is reserved for the person who talks to the agent.")
        return name

    def model_post_init(self, context: Any, /) -> None:
        """Make this agent the parent of its sub-agents.

        Raises:
            ValueError: One of them has another parent.
        """
        super().model_post_init(context)
        for agent in self.sub_agents:
            if agent.parent_agent is not None:
                raise ValueError(
                    f"Agent `{agent.name}` already has a parent agent, current parent: "
                    f"`{agent.parent_agent.name}`, trying to add: `{self.name}`"
                )
        for agent in self.sub_agents:
            agent.parent_agent = self

    @property
    def root_agent(self) -> BaseAgent:
        """The agent at the top of the tree that this one belongs to."""
        return list(lineage(self))[-1]

    def find_agent(self, name: str) -> BaseAgent | None:
        """Return the agent of that name among this one and those below it."""
        return self if self.name == name else self.find_sub_agent(name)

    def find_sub_agent(self, name: str) -> BaseAgent | None:
        """Return the agent of that name below this one."""
        return next((found for agent in self.sub_agents if (found := agent.find_agent(name))), None)

    def clone(self, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy without a parent, with copies of the agents below it.

        Raises:
            ValueError: `update` names `parent_agent`, or a field that agents of this kind do not have.
        """
        changes = dict(update or {})
        if "parent_agent" in changes:
            raise ValueError("Cannot update `parent_agent` in clone; it is set when the parent is made.")
        unknown = set(changes) - set(type(self).model_fields)
        if unknown:
            raise ValueError(f"Cannot update nonexistent fields in {type(self).__name__}: {unknown}")
        copy = self.model_copy(update=changes)
        for name in type(self).model_fields:
            if name not in changes and isinstance(value := getattr(copy, name), list):
                setattr(copy, name, list(value))
        if "sub_agents" not in changes:
            copy.sub_agents = [agent.clone() for agent in self.sub_agents]
        for agent in copy.sub_agents:
            agent.parent_agent = copy
        copy.parent_agent = None
        return copy


def lineage(agent: BaseAgent) -> Iterator[BaseAgent]:
    """Yield an agent and the agents above it, up to the root."""
    above: BaseAgent | None = agent
    while above is not None:
        yield above
        above = above.parent_agent


def listed(callbacks: Callbacks) -> list[Callable[..., Any]]:
    """Return one or several callbacks as a list."""
    if callbacks is None:
        return []
    return callbacks if isinstance(callbacks, list) else [callbacks]
