"""Agents that run their sub-agents concurrently."""

from waystation.agents import BaseAgent


class ParallelAgent(BaseAgent):
    """Runs its `sub_agents` concurrently. They do not see each other's messages."""
