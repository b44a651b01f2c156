"""Mirrors ADK's `google.adk.code_executors` package."""

from functools import partial

from waystation.adk_names import import_name
from waystation.code_executors.built_in_code_executor import BuiltInCodeExecutor

__getattr__ = partial(import_name, __name__)
__all__ = ["BuiltInCodeExecutor"]
