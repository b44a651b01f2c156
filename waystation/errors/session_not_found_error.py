"""Mirrors ADK's `google.adk.errors.session_not_found_error` module."""

from waystation.core.errors import WaystationError

__all__ = ["SessionNotFoundError"]


class SessionNotFoundError(WaystationError, ValueError):
    """A session does not exist. As in ADK, this is a `ValueError`.

    Create the session first, or check the app name, the user ID and the session ID.
    """

    def __init__(self, message: str = "Session not found.") -> None:
        super().__init__(message)
