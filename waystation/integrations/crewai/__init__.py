"""Where ADK has `google.adk.integrations.crewai`."""

from tools import CrewaiTool

__all__ = ["CrewaiTool"]
