"""What a client does with sessions as a whole."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from temporalio.client import Client

from waystation.client.session_client import Session
from waystation.client.session_deletion import GRACE, ArtifactKeeper, DeletedSession, Rememberer, delete_session
from waystation.client.session_list import SessionEntry, list_sessions
from waystation.core.wire import DEFAULT_APP, DEFAULT_USER

if TYPE_CHECKING:
    from waystation.client.agent_client import AgentClient


class ConversationClient:
    """A part of `AgentClient`."""

    temporal: Client
    task_queue: str

    def session(
        self, *, agent: str, session_id: str, user_id: str = DEFAULT_USER, app: str = DEFAULT_APP, **options: Any
    ) -> Session:
        """Return the session of that name, whether or not it exists; see `Session`."""
        return Session(
            cast("AgentClient", self), agent=agent, session_id=session_id, user_id=user_id, app=app, **options
        )

    def sessions(
        self, *, agent: str | None = None, user_id: str | None = None, app: str | None = None
    ) -> AsyncIterator[SessionEntry]:
        """Yield the sessions in the namespace, those that began last first. No worker has to run.

        They come from visibility, which may lag behind by a second.

        Args:
            agent: Only those of this agent.
            user_id: Only those of this user.
            app: Only those of this app.
        """
        return list_sessions(self.temporal, agent=agent, user_id=user_id, app=app)

    async def delete_session(
        self,
        session_id: str,
        *,
        user_id: str = DEFAULT_USER,
        app: str = DEFAULT_APP,
        artifacts: ArtifactKeeper | None = None,
        memory: Rememberer | None = None,
        grace: timedelta = GRACE,
    ) -> DeletedSession:
        """Delete a session: its workflows, its artifacts, and what was remembered of it.

        What goes on is cancelled first. No worker has to run. State and artifacts of the user (`user:`), and what a
        tool noted with `add_memory`, are not the session's and stay. May be repeated, also when it was interrupted. The
        server forgets what it was told to delete in the background, about half a minute later; until then there can be
        no new session of that name.

        Args:
            session_id: Which of the user's sessions.
            user_id: Whose it is.
            app: In which app.
            artifacts: Where its artifacts are, such as `waystation.artifacts.ObjectStoreArtifactService(url)`.
            memory: Where it is remembered, such as `waystation.memory.SqliteMemoryService(path)`.
            grace: How long tools that run may take to end; afterwards their invocations are terminated.

        Raises:
            ValueError: No session can have such names.
            StoreFailed: A store is not reached. What was deleted so far is; repeat it.
        """
        return await delete_session(
            self.temporal,
            app=app,
            user_id=user_id,
            session_id=session_id,
            artifacts=artifacts,
            memory=memory,
            grace=grace,
        )
