"""Where ADK has `google.adk.tools.crewai_tool`."""

from tools import CrewaiTool

__all__ = ["CrewaiTool"]
