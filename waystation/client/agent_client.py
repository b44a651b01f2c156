"""The entry point of the client: start and find invocations and sessions. Wraps Temporal's client."""

import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError

from waystation.client.approvals import Approvals
from waystation.client.connection import connect
from waystation.client.invocation_forks import Forks
from waystation.client.invocation_handle import CredentialKeeper, Invocation, approve_calls, start_invocation
from waystation.client.search_attributes import has_search_attributes
from waystation.client.session_handle import Session
from waystation.client.session_management import (
    GRACE,
    ArtifactKeeper,
    DeletedSession,
    MemoryKeeper,
    ScopedState,
    Sessions,
)
from waystation.client.token_encryption import TokenEncrypter, TokenEncryption
from waystation.core import (
    DEFAULT_APP,
    DEFAULT_USER,
    TASK_QUEUE,
    Budget,
    Event,
    InvocationResult,
    JsonObject,
    PendingCall,
)
from waystation.storage import Blobs

__all__ = ["AgentClient", "Invocation"]


class AgentClient:
    """Starts invocations and sessions, and answers pending calls."""

    def __init__(
        self,
        temporal: Client,
        *,
        task_queue: str = TASK_QUEUE,
        blobs: Blobs | None = None,
        identity: str | Path | TokenEncrypter | None = None,
    ) -> None:
        """Wrap Temporal's client.

        Args:
            temporal: Temporal's client.
            task_queue: The task queue that the workers poll.
            blobs: The workers' store. Histories that the server has deleted are read from it.
            identity: The file that configures the encryption of tokens, or an encrypter. By default the variable
                WAYSTATION_IDENTITY names the file.
        """
        self.temporal = temporal
        """Temporal's own client."""
        self.task_queue = task_queue
        self.blobs = blobs or Blobs()
        self.token_encryption = TokenEncryption(identity)
        self.approvals = Approvals(self)
        """The pending calls of the whole namespace."""
        self.sessions = Sessions(temporal)
        self.state = ScopedState(temporal)
        """The state of users and of apps, which outlives sessions."""
        self.forks = Forks(self)
        """Forks: invocations that continue from an event of another one."""
        self._searchable: bool | None = None

    @classmethod
    async def connect(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        profile: str | None = None,
        task_queue: str = TASK_QUEUE,
        store: str | Path | None = None,
        identity: str | Path | TokenEncrypter | None = None,
    ) -> "AgentClient":
        """Connect with the settings of `temporalio.envconfig`; arguments override them.

        `store` is the workers' store for large payloads, see `waystation.storage.Blobs`.

        Raises:
            RuntimeError: No server answers at the address.
        """
        return cls(
            await connect(address=address, namespace=namespace, profile=profile, store=store),
            task_queue=task_queue,
            blobs=Blobs(store),
            identity=identity,
        )

    async def start(
        self,
        agent: str,
        message: str | JsonObject,
        *,
        id: str | None = None,
        state: Mapping[str, Any] | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        app: str | None = None,
        budget: Budget | None = None,
        metadata: Mapping[str, Any] | None = None,
        requester: str | None = None,
        streaming: bool = False,
    ) -> Invocation:
        """Start an invocation and return immediately.

        Args:
            agent: Name of a root agent.
            message: Text, or a genai Content as JSON.
            id: Id of the invocation; by default a new one. A second start with the same id returns the existing
                invocation, with its first message.
            state: Initial state.
            user_id: The user that the agent serves.
            session_id: The conversation that the invocation belongs to.
            app: The application. Each has its own artifacts, memories and credentials.
            budget: Limits on tokens, cost and calls.
            metadata: Recorded with the input; not sent to the model.
            requester: The person who triggers the invocation, if not `user_id`. Policies may exclude this person from
                answering.
            streaming: Make text readable while a model generates it; see `Invocation.stream`.
        """
        optional = {
            "state": dict(state) if state else None,
            "user_id": user_id,
            "session_id": session_id,
            "app": app,
            "budget": budget.model_dump() if budget else None,
            "metadata": dict(metadata) if metadata else None,
            "requester": requester,
            "streaming": streaming,
        }
        params = {"agent": agent, "message": message, **{key: value for key, value in optional.items() if value}}
        invocation_id = id or f"{agent}-{uuid.uuid4().hex[:12]}"
        try:
            return Invocation(self, await start_invocation(self, invocation_id, params))
        except WorkflowAlreadyStartedError:
            return Invocation(self, self.temporal.get_workflow_handle(invocation_id), existed=True)

    async def searchable(self) -> bool:
        """Whether the namespace has Waystation's search attributes."""
        if self._searchable is None:
            self._searchable = await has_search_attributes(self.temporal, log_problems=False)
        return self._searchable

    async def run(self, agent: str, message: str | JsonObject, **options: Any) -> InvocationResult:
        """Start an invocation and wait for its result; see `start` and `Invocation.result`."""
        return await (await self.start(agent, message, **options)).result()

    def invocation(self, id: str, *, run_id: str | None = None) -> Invocation:
        """Return the invocation of that id, whether or not it exists."""
        return Invocation.from_id(self, id, run_id=run_id)

    def stream(self, id: str, *, start: int = 0, partial: bool = False) -> AsyncIterator[Event]:
        """Yield the events of an invocation as they are recorded; see `Invocation.stream`."""
        return self.invocation(id).stream(start=start, partial=partial)

    async def authorize(self, auth_response_uri: str, *, store: CredentialKeeper) -> list[JsonObject]:
        """Finish a login, and approve all calls that wait for it; return the receipts.

        `auth_response_uri` is the URI to which the provider redirected the user.

        Raises:
            AuthorizationFailed: The login is unknown, or yields no token. The message contains no secret.
        """
        return await approve_calls(self, (await store.authorize(auth_response_uri=auth_response_uri)).calls)

    def session(
        self, *, agent: str, session_id: str, user_id: str = DEFAULT_USER, app: str = DEFAULT_APP, **options: Any
    ) -> Session:
        """Return the session of these names, whether or not it exists; see `Session`."""
        return Session(self, agent=agent, session_id=session_id, user_id=user_id, app=app, **options)

    async def delete_session(
        self,
        session_id: str,
        *,
        user_id: str = DEFAULT_USER,
        app: str = DEFAULT_APP,
        artifacts: ArtifactKeeper | None = None,
        memory: MemoryKeeper | None = None,
        grace: timedelta = GRACE,
    ) -> DeletedSession:
        """Delete a session; see `sessions.delete`."""
        return await self.sessions.delete(
            session_id, user_id=user_id, app=app, artifacts=artifacts, memory=memory, grace=grace
        )

    async def pending(self, *, below: str | None = None) -> list[PendingCall]:
        """Return all pending calls, oldest first; see `approvals.pending`."""
        return await self.approvals.pending(below=below)

    async def user_state(self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER) -> JsonObject:
        """Return the state of a user in an app; see `state.user`."""
        return await self.state.user(app=app, user_id=user_id)

    async def app_state(self, *, app: str = DEFAULT_APP) -> JsonObject:
        """Return the state of an app; see `state.app`."""
        return await self.state.app(app=app)

    async def delete_user_state(self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER) -> bool:
        """Delete the state of a user in an app; see `state.delete_user`."""
        return await self.state.delete_user(app=app, user_id=user_id)

    async def delete_app_state(self, *, app: str = DEFAULT_APP) -> bool:
        """Delete the state of an app; see `state.delete_app`."""
        return await self.state.delete_app(app=app)
