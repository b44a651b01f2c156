"""Tools, for authors; where ADK has `google.adk.tools`."""

from tools import AgentTool, BaseTool, FunctionTool, LongRunningFunctionTool, ToolContext

__all__ = ["AgentTool", "BaseTool", "FunctionTool", "LongRunningFunctionTool", "ToolContext"]
