"""Where ADK has `google.adk.integrations.langchain`."""

from tools import LangchainTool

__all__ = ["LangchainTool"]
