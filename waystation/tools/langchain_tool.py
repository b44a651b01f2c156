"""Where ADK has `google.adk.tools.langchain_tool`."""

from tools import LangchainTool

__all__ = ["LangchainTool"]
