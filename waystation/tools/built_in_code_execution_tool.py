"""Where ADK had `google.adk.tools.built_in_code_execution_tool`."""

from tools import BuiltInCodeExecutionTool, built_in_code_execution

__all__ = ["BuiltInCodeExecutionTool", "built_in_code_execution"]
