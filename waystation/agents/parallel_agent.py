"""Agents that run others at the same time."""

from waystation.agents import BaseAgent


class ParallelAgent(BaseAgent):
    """Runs its `sub_agents` at once; they do not see what the others say. Source: adk-semantics 9.2."""
