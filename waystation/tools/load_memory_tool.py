"""Where ADK has `google.adk.tools.load_memory_tool`."""

from tools.memory_tools import LoadMemoryTool, load_memory, load_memory_tool

__all__ = ["LoadMemoryTool", "load_memory", "load_memory_tool"]
