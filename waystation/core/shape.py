"""The shape of an agent tree, as recorded: all that a workflow knows of the agents that it schedules."""

from typing import Literal

from waystation.core.payload import Recorded

AgentKind = Literal["llm", "sequential", "parallel", "loop"]


class AgentShape(Recorded):
    """One agent, and those that it runs.

    An LLM agent has no children here: to whom it may transfer is decided, and recorded, with each transfer.
    """

    name: str
    kind: AgentKind = "llm"
    children: tuple["AgentShape", ...] = ()
    max_iterations: int | None = None
    """For a loop; None: until somebody escalates."""
    before: bool = False
    """Whether entering it needs an activity, for its `before_agent` callbacks. An LLM agent's run with its first model
    call."""
    after: bool = False
    """Whether leaving it needs an activity, for its `after_agent` callbacks."""
    keeps_turn: bool = True
    """Whether the user's next message may go to it; see adk-semantics 9.1."""
