"""Where ADK has `google.adk.agents.llm_agent`."""

from waystation.agents.agent import Agent, LlmAgent

__all__ = ["Agent", "LlmAgent"]
