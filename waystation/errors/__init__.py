"""Errors that tools and agents may raise. Mirrors ADK's `google.adk.errors` package."""

from waystation.core import InputValidationError

__all__ = ["InputValidationError"]
