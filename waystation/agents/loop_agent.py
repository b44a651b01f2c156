"""Agents that run their sub-agents repeatedly."""

from waystation.agents import BaseAgent


class LoopAgent(BaseAgent):
    """Runs its `sub_agents` in order, repeatedly, until one of them escalates. Source: adk-semantics 9.2."""

    max_iterations: int | None = None
    """None: limited only by the budget for model calls. Zero or less: nothing runs."""
