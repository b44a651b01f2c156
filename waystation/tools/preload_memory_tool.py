"""Where ADK has `google.adk.tools.preload_memory_tool`."""

from tools.memory_tools import PreloadMemoryTool, preload_memory_tool

__all__ = ["PreloadMemoryTool", "preload_memory_tool"]
