"""Where ADK has `google.adk.integrations.langchain`."""

from waystation.tools.langchain_tool import LangchainTool

__all__ = ["LangchainTool"]
