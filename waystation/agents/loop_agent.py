"""Agents that run their sub-agents repeatedly."""

from waystation.agents import BaseAgent


class LoopAgent(BaseAgent):
    """Runs its `sub_agents` in order, repeatedly, until one of them escalates or `max_iterations` is reached."""

    max_iterations: int | None = None
    """The maximum number of times to run the sub-agents. If None, only the budget for model calls limits the loop. If
    zero or less, nothing runs.
    """
