"""Where ADK has `google.adk.errors.input_validation_error`."""

from waystation.core import InputValidationError

__all__ = ["InputValidationError"]
