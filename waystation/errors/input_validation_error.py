"""Mirrors ADK's `google.adk.errors.input_validation_error` module."""

from waystation.core.errors import InputValidationError

__all__ = ["InputValidationError"]
