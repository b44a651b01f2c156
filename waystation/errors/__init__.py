"""Errors, for authors; where ADK has `google.adk.errors`."""

from waystation.core import InputValidationError

__all__ = ["InputValidationError"]
