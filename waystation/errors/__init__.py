"""Errors that tools, agents and session services may raise. Mirrors ADK's `google.adk.errors` package."""

from functools import partial

from waystation.adk_names import import_name
from waystation.core.errors import InputValidationError
from waystation.errors.already_exists_error import AlreadyExistsError
from waystation.errors.session_not_found_error import SessionNotFoundError

__getattr__ = partial(import_name, __name__)
__all__ = ["AlreadyExistsError", "InputValidationError", "SessionNotFoundError"]
