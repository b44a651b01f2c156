"""The interface of session services. Mirrors ADK's `google.adk.sessions.base_session_service` module."""

from __future__ import annotations

import abc
from typing import Any

from pydantic import BaseModel, Field

from waystation.sessions.session import Session


class GetSessionConfig(BaseModel):
    """Which events `get_session` returns. By default, all of them."""

    num_recent_events: int | None = Field(default=None, ge=0)
    """Maximum number of events, counted from the latest."""
    after_timestamp: float | None = None
    """Time of the earliest event, in seconds since 1970."""


class ListSessionsResponse(BaseModel):
    """The sessions that `list_sessions` found, without their state and events."""

    sessions: list[Session] = Field(default_factory=list)


class BaseSessionService(abc.ABC):
    """Creates, reads and deletes sessions. Signatures match ADK 2.13."""

    @abc.abstractmethod
    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session. By default, its ID is generated."""

    @abc.abstractmethod
    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session, or None if it does not exist."""

    @abc.abstractmethod
    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of an app, and of one user if `user_id` is given, least recently started first."""

    @abc.abstractmethod
    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session. Do nothing if it does not exist."""

    @abc.abstractmethod
    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return a user's state in an app, without the prefix `user:` of its keys."""
