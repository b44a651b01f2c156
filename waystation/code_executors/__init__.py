"""Mirrors ADK's `google.adk.code_executors` package."""

from waystation.code_executors.built_in_code_executor import BuiltInCodeExecutor

__all__ = ["BuiltInCodeExecutor"]
