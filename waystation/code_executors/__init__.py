"""Where ADK has `google.adk.code_executors`."""

from waystation.code_executors.built_in_code_executor import BuiltInCodeExecutor

__all__ = ["BuiltInCodeExecutor"]
