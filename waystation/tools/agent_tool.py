"""Where ADK has `google.adk.tools.agent_tool`."""

from tools import AgentTool

__all__ = ["AgentTool"]
