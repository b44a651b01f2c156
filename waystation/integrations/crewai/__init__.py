"""Where ADK has `google.adk.integrations.crewai`."""

from waystation.tools.crewai_tool import CrewaiTool

__all__ = ["CrewaiTool"]
