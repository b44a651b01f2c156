"""Agents that run others again and again."""

from waystation.agents import BaseAgent


class LoopAgent(BaseAgent):
    """Runs its `sub_agents` in order, until one of them escalates. Source: adk-semantics 9.2."""

    max_iterations: int | None = None
    """None: no limit but that of model calls. Zero or less: nothing is run."""
