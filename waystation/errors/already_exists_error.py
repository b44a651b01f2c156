"""Mirrors ADK's `google.adk.errors.already_exists_error` module."""

from waystation.core.errors import WaystationError

__all__ = ["AlreadyExistsError"]


class AlreadyExistsError(WaystationError):
    """A session with this ID exists, and the program does not continue it.

    Choose another session ID, or send messages to the existing session.
    """

    def __init__(self, message: str = "The resource already exists.") -> None:
        self.message = message
        super().__init__(message)
