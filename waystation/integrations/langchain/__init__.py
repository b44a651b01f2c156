"""Mirrors ADK's `google.adk.integrations.langchain` package."""

from waystation.tools.langchain_tool import LangchainTool

__all__ = ["LangchainTool"]
