"""Sessions whose histories are in Temporal."""

from __future__ import annotations

import abc
import asyncio
import hashlib
import time
import uuid
from collections import Counter
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowExecutionStatus

from waystation import client
from waystation.client import AgentClient, Invocation, count_events
from waystation.core import ids
from waystation.core.errors import SessionExists, UnknownInvocation, UnknownSession
from waystation.core.payload import JsonObject, encode
from waystation.errors import AlreadyExistsError
from waystation.events import Event
from waystation.history import describe_workflow
from waystation.sessions.background import BACKGROUND
from waystation.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from waystation.sessions.session import Session

if TYPE_CHECKING:
    from waystation.sessions.program_run import ProgramRun

DELETION_LIMIT_S = 90.0
"""How long a new session waits for the deletion of one with the same ID. The server deletes after about 30 seconds."""
DELETION_POLL_S = 0.5
_STOPPED = {WorkflowExecutionStatus.CANCELED: "cancelled", WorkflowExecutionStatus.TERMINATED: "terminated"}
"""How the workflow of a deleted session ended, and the status under which such a session is listed."""


class RecordedSessionService(BaseSessionService):
    """A session service that names sessions. Each session is a workflow, and its history contains its events."""

    def __init__(self) -> None:
        self._created = 0
        self._sent: dict[str, int] = {}
        """Number of messages that this process has sent, by session."""
        self.deletions = Counter[tuple[str, str, str]]()
        """How often this process has deleted the session of an app and a user with an ID."""

    @abc.abstractmethod
    def _open_run(self) -> tuple[ProgramRun, str]:
        """Return the current run of the program, and the tenant that separates the service's sessions from others."""

    @cached_property
    def _opened(self) -> tuple[ProgramRun, str]:
        return self._open_run()

    @property
    def run(self) -> ProgramRun:
        """The current run of the program."""
        return self._opened[0]

    @property
    def _shares_sessions(self) -> bool:
        """Whether other runs of programs have the same sessions."""
        return self._opened[1] != ids.program_tenant(self.run.id)

    def task_queue(self, app_name: str) -> str:
        """Return the task queue of the sessions of an app."""
        return f"waystation-{self._opened[1]}-{app_name}"

    async def handle(self, app_name: str, user_id: str, session_id: str, agent: str = "") -> client.Session:
        """Return the handle of a session, whether or not it exists. Call this in the background's event loop."""
        agent_client = AgentClient(await BACKGROUND.client(), task_queue=self.task_queue(app_name))
        return agent_client.session(
            agent=agent, session_id=session_id, user_id=user_id, app=app_name, tenant=self._opened[1]
        )

    def next_message_id(self, session: client.Session, content: JsonObject) -> str:
        """Return the ID of the next message or change of the state in a session.

        If the run was resumed, the ID is that of the message that the previous run sent at the same point, unless the
        content is different. The session then does not handle the message again.
        """
        number = self._sent[session.id] = self._sent.get(session.id, 0) + 1
        return f"{self.run.id}-{number}-{hashlib.sha256(encode(content)).hexdigest()[:12]}"

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session. If it exists and is unfinished, return it; the program then continues with it.

        A session is unfinished if one of its invocations is open, or if this run resumes one that was killed or failed
        after it had created the session.

        Raises:
            AlreadyExistsError: The session exists and is finished.
        """
        return await BACKGROUND.call(self._create(app_name, user_id, (session_id or "").strip(), state))

    async def _create(self, app_name: str, user_id: str, session_id: str, state: dict[str, Any] | None) -> Session:
        self._created += 1
        # A resumed run has to find the sessions that the previous run created.
        session_id = session_id or str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.run.id}/{self._created}"))
        session = await self.handle(app_name, user_id, session_id)
        was_noted = not self._shares_sessions or self.run.has_noted_session(session.id)
        if not was_noted:
            self.run.note_session(session.id)  # first, because the program may be killed after the next line
        try:
            await self.start(session, state)
        except SessionExists:
            if not await self._attach(session, was_noted=was_noted):
                if not was_noted:
                    self.run.forget_session(session.id)
                raise AlreadyExistsError(f"Session with id {session_id} already exists.") from None
        return await read_session(session)

    async def start(self, session: client.Session, state: dict[str, Any] | None = None) -> None:
        """Start a session. If the server is still deleting one with the same ID, wait until it has deleted that one.

        Raises:
            SessionExists: The session exists, or the server has not deleted it within `DELETION_LIMIT_S`.
        """
        deadline = time.monotonic() + DELETION_LIMIT_S
        while True:
            try:
                await session.create(state)
                return
            except SessionExists:
                if await self.exists(session) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(DELETION_POLL_S)

    async def _attach(self, session: client.Session, *, was_noted: bool) -> bool:
        """Return whether the program continues with a session that exists. Let the run resume the previous one then.

        Without `WAYSTATION_RESUME`, a run does not resume if a person stopped the previous one, because the person may
        repeat a message in order to send it again, or if messages have been sent already.
        """
        if self.run.is_resumed and self.run.was_interrupted and was_noted:
            return True
        if not await _has_open_invocation(session):
            return False
        if self._shares_sessions and not self.run.was_stopped and not self._sent:
            self.run.resume()
        return True

    @staticmethod
    async def exists(session: client.Session) -> bool:
        """Return whether a session exists. Call this in the background's event loop.

        A deleted session does not exist, although the server keeps its stopped workflow for a while.
        """
        described = await describe_workflow(session.client.temporal, session.id)
        return described is not None and described.status not in _STOPPED

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events so far, or None if it does not exist."""

        async def get() -> Session | None:
            session = await self.handle(app_name, user_id, session_id)
            with suppress(UnknownSession):  # also if it is deleted while it is read
                if await self.exists(session):
                    return await read_session(session, config)
            return None

        return await BACKGROUND.call(get())

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of an app, least recently started first. A new session may be missing for a second."""

        async def find() -> list[Session]:
            sessions = AgentClient(await BACKGROUND.client()).sessions
            return [
                Session(
                    id=entry.session_id,
                    app_name=app_name,
                    user_id=entry.user_id,
                    last_update_time=entry.started_at.timestamp(),
                )
                async for entry in sessions.list(user_id=user_id, app=app_name, tenant=self._opened[1])
                if entry.status not in _STOPPED.values()
            ]

        return ListSessionsResponse(sessions=(await BACKGROUND.call(find()))[::-1])

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its invocations. Artifacts and memories are kept."""

        async def delete() -> None:
            agent_client = AgentClient(await BACKGROUND.client())
            await agent_client.delete_session(session_id, user_id=user_id, app=app_name, tenant=self._opened[1])
            self.deletions[app_name, user_id, session_id] += 1

        await BACKGROUND.call(delete())

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return a user's state in an app, without the prefix `user:` of its keys."""

        async def get() -> dict[str, Any]:
            agent_client = AgentClient(await BACKGROUND.client())
            return await agent_client.user_state(app=app_name, user_id=user_id, tenant=self._opened[1])

        return {key.removeprefix("user:"): value for key, value in (await BACKGROUND.call(get())).items()}

    async def append_event(self, session: Session, event: Event) -> Event:
        """Record the state changes of an event, and add the event to `session`.

        The next invocation starts with the changed state. `get_session` returns the state, but not the event. In a
        resumed run, a change that the previous run recorded at the same point is not recorded again.

        Raises:
            NotImplementedError: The event contains more than changes to the session's own state.
            UnknownSession: The session does not exist.
        """
        if event.partial:
            return event
        delta = {key: value for key, value in event.actions.state_delta.items() if not key.startswith("temp:")}
        if problem := _find_append_problem(event, delta):
            raise NotImplementedError(f"`append_event` {problem}")
        if delta:
            await BACKGROUND.call(self._change_state(session, delta))
        session.state |= delta
        session.events.append(event)
        session.last_update_time = event.timestamp
        return event

    async def _change_state(self, session: Session, delta: JsonObject) -> None:
        handle = await self.handle(session.app_name, session.user_id, session.id)
        await handle.change_state(delta, change_id=self.next_message_id(handle, {"state": delta}))

    async def flush(self) -> None:
        """Do nothing: everything is recorded immediately."""


async def read_session(session: client.Session, config: GetSessionConfig | None = None) -> Session:
    """Return a session with its state and its events so far, also those of invocations that have not ended.

    Raises:
        UnknownSession: The session does not exist.
    """
    config = config or GetSessionConfig()
    recorded, state = await session.events(), await session.state()
    await session.started_invocations.caught_up()
    counts = count_events(recorded)
    for invocation_id in session.started_invocations.order:
        if invocation_id not in session.started_invocations.reported:
            try:
                log = await Invocation.from_id(session.client, invocation_id).log()
            except UnknownInvocation:  # the server is deleting it
                continue
            if new := log.state.events[counts[invocation_id] :]:
                recorded, state = [*recorded, *new], {**state, **log.state.session.values}
    kept = [event for event in recorded if event.timestamp >= (config.after_timestamp or 0)]
    if config.num_recent_events is not None:
        kept = kept[max(len(kept) - config.num_recent_events, 0) :]
    began = await describe_workflow(session.client.temporal, session.id) if not recorded else None
    return Session(
        id=session.given.session_id,
        app_name=session.given.app,
        user_id=session.given.user_id,
        state={key: value for key, value in state.items() if not key.startswith("temp:")},
        events=[Event.from_recorded(event) for event in kept],
        last_update_time=began.start_time.timestamp() if began else recorded[-1].timestamp if recorded else 0.0,
    )


async def _has_open_invocation(session: client.Session) -> bool:
    invocations = session.started_invocations
    await invocations.caught_up()
    for invocation_id in invocations.order:
        if invocation_id not in invocations.reported:
            described = await describe_workflow(session.client.temporal, invocation_id)
            if described and described.status is WorkflowExecutionStatus.RUNNING:
                return True
    return False


def _find_append_problem(event: Event, delta: JsonObject) -> str | None:
    """Return why an event cannot be appended to a recorded session, with the remedy, or None."""
    if event.content is not None:
        return "cannot add content to a recorded session. Send a message with `Runner.run_async`."
    # An event of google-adk also has None where the default is None.
    actions = event.actions.model_dump(exclude_defaults=True, exclude_none=True, exclude={"state_delta"})
    if actions:
        return f"cannot record `{next(iter(actions))}`. Only tools, callbacks and agents can have such actions."
    if shared := next((key for key in delta if key.startswith(("user:", "app:"))), None):
        return (
            f"cannot change {shared!r}, because only invocations write to the state of users and apps. Change it in a "
            "tool or a callback, or pass `state_delta` to `Runner.run_async`."
        )
    return None
