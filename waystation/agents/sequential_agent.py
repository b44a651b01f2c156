"""Agents that run their sub-agents one after another."""

from waystation.agents import BaseAgent


class SequentialAgent(BaseAgent):
    """Runs its `sub_agents` in order, in one conversation."""
