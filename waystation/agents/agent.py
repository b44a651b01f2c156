"""The two names that most code needs from here; see `base_agent` and `llm_agent`."""

from waystation.agents.base_agent import BaseAgent
from waystation.agents.llm_agent import Agent, LlmAgent

__all__ = ["Agent", "BaseAgent", "LlmAgent"]
