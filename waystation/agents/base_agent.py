"""The base class of all agents, with name, description, sub-agents and callbacks.

An agent is a declaration that workflows never see. Activities look it up by name, so a changed agent takes effect at
the next model call, even in running invocations.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator

RESERVED_NAMES = frozenset({"user"})

Callbacks: TypeAlias = Callable[..., Any] | list[Callable[..., Any]] | None
"""None, one callback or a list of callbacks, sync or async. In a list, the first callback that returns a value ends
the chain.
"""

CODE_OF_ITS_OWN = ("run_async", "run_live", "_run_async_impl", "_run_live_impl", "_run_impl")
"""Methods that custom agents in ADK override to run their own code. Subclasses that define one are rejected."""


class BaseAgent(BaseModel):
    """Base class of agents. Only `LlmAgent` and the composite agents can run; put your own code into tools."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    name: str
    description: str = ""
    parent_agent: BaseAgent | None = Field(default=None, init=False, exclude=True, repr=False)
    """The agent whose `sub_agents` contain this agent, or None if this agent is a root."""
    sub_agents: list[BaseAgent] = Field(default_factory=list)
    before_agent_callback: Callbacks = None
    """Called with `(callback_context)`. A returned Content replaces the agent's run."""
    after_agent_callback: Callbacks = None
    """Called with `(callback_context)`. A returned Content is added after the agent's answer."""

    def __eq__(self, other: object) -> bool:
        # Skip the parent, which contains this agent: comparing it would recurse forever.
        fields = type(self).model_fields.keys() - {"parent_agent"}
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in fields)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Reject subclasses that override ADK's run methods.

        Raises:
            TypeError: The subclass defines such a method.
        """
        super().__init_subclass__(**kwargs)
        own = next((name for name in CODE_OF_ITS_OWN if name in cls.__dict__), None)
        if own is not None:
            raise TypeError(
                f"The agent class {cls.__name__!r} defines `{own}`, which cannot run: an agent runs in the workflow, "
                "which replays and therefore cannot run your code. Combine LlmAgent, SequentialAgent, ParallelAgent "
                "and LoopAgent, and put your code into tools and callbacks."
            )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        # Same rule as in ADK. Names appear in prompts, activity types and state keys.
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{name!r} is not a valid identifier; use letters, digits and underscores.")
        if name in RESERVED_NAMES:
            raise ValueError(f"{name!r} is reserved for the user; choose another name.")
        return name

    def model_post_init(self, context: Any, /) -> None:
        """Set this agent as the parent of its sub-agents.

        Raises:
            ValueError: A sub-agent already has a parent.
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
        """The root of the agent tree that contains this agent."""
        return list(lineage(self))[-1]

    @property
    def request_schema(self) -> type[BaseModel] | None:
        """The schema of the message that starts the agent as a tool: that of the first LLM agent that runs."""
        return self.sub_agents[0].request_schema if self.sub_agents else None

    @property
    def answers_with_object(self) -> bool:
        """Whether the answer is an object, because the last LLM agent that runs has an output schema."""
        return bool(self.sub_agents) and self.sub_agents[-1].answers_with_object

    def find_agent(self, name: str) -> BaseAgent | None:
        """Return the agent with this name in the tree rooted at this agent, or None if there is none."""
        return self if self.name == name else self.find_sub_agent(name)

    def find_sub_agent(self, name: str) -> BaseAgent | None:
        """Return the descendant of this agent with this name, or None if there is none."""
        return next((match for agent in self.sub_agents if (match := agent.find_agent(name))), None)

    def clone(self, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy of the agent without a parent, and with the field values in `update`.

        Sub-agents are copied too, unless `update` replaces them.

        Raises:
            ValueError: `update` contains `parent_agent` or an unknown field.
        """
        changes = dict(update or {})
        if "parent_agent" in changes:
            raise ValueError("Cannot update `parent_agent` in clone; the parent sets it.")
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
    """Yield an agent and its ancestors, from the agent up to the root."""
    above: BaseAgent | None = agent
    while above is not None:
        yield above
        above = above.parent_agent


def as_list(callbacks: Callbacks) -> list[Callable[..., Any]]:
    """Return the callbacks as a list, which is empty for None."""
    if callbacks is None:
        return []
    return callbacks if isinstance(callbacks, list) else [callbacks]
