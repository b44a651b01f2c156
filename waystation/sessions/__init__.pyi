from waystation.sessions.background import BACKGROUND, Background
from waystation.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from waystation.sessions.database_session_service import DatabaseSessionService
from waystation.sessions.in_memory_session_service import InMemorySessionService
from waystation.sessions.recorded_session_service import RecordedSessionService
from waystation.sessions.session import Session
from waystation.tools.state import State

__all__ = [
    "BACKGROUND",
    "Background",
    "BaseSessionService",
    "DatabaseSessionService",
    "GetSessionConfig",
    "InMemorySessionService",
    "ListSessionsResponse",
    "RecordedSessionService",
    "Session",
    "State",
]
