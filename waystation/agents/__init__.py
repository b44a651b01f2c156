"""What authors declare: agents."""

from waystation.agents.agent import Agent, BaseAgent, LlmAgent

__all__ = ["Agent", "BaseAgent", "LlmAgent"]
