"""Mirrors ADK's `google.adk.integrations.crewai` package."""

from waystation.tools.crewai_tool import CrewaiTool

__all__ = ["CrewaiTool"]
