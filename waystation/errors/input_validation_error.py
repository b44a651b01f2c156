"""Mirrors ADK's `google.adk.errors.input_validation_error` module."""

from waystation.core import InputValidationError

__all__ = ["InputValidationError"]
