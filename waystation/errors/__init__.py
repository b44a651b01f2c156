"""Errors, for authors; where ADK has `google.adk.errors`."""

from waystation.core.errors import InputValidationError

__all__ = ["InputValidationError"]
