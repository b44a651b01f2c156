"""One session, and the invocations that its messages go to."""

import asyncio
import functools
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError

from waystation.client.approvals import Approvals
from waystation.client.client_context import ClientContext
from waystation.client.invocation_handle import Invocation
from waystation.client.scoped_state import ScopedState
from waystation.client.session_stream import StartedInvocations, count_events, stream_session, unknown_session
from waystation.client.workflow_updates import send_when_ready, unless_cancelled
from waystation.core import errors, ids
from waystation.core.answer import Action, PendingCall
from waystation.core.budget import Budget
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.payload import JsonObject, digest, encode, faults, plain
from waystation.core.session_data import Busy, SessionInput, check_size
from waystation.core.wire import CLOSE, DEFAULT_APP, DEFAULT_USER, SEND, SESSION_WORKFLOW, InvocationResult
from waystation.history import SessionReader, decode_events, is_not_found
from waystation.storage import Blobs

CONFIRMATION_LIMIT = timedelta(seconds=30)
"""How long a worker may take to confirm a message."""


class Session:
    """One conversation of a user with an agent."""

    def __init__(
        self,
        client: ClientContext,
        *,
        agent: str,
        session_id: str,
        user_id: str = DEFAULT_USER,
        app: str = DEFAULT_APP,
        blobs: Blobs | None = None,
    ) -> None:
        """Name a session, whether or not it exists; `blobs` is where the workers keep what leaves history.

        Raises:
            ValueError: A name is empty, or too long for a workflow id.
        """
        self.client = client
        try:
            self.given = given = SessionInput(agent=agent, app=app, user_id=user_id, session_id=session_id)
        except ValidationError as error:
            raise ValueError(f"These are no names of a session: {faults(error)}.") from None
        self.id = ids.session(given.app, given.user_id, given.session_id)
        """Its workflow id."""
        self._blobs = blobs or client.blobs
        self.started_invocations = StartedInvocations(client.temporal, self.id)
        """Reads which invocations the session has started."""

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        """Temporal's own handle, of whichever run is the present one."""
        return self.client.temporal.get_workflow_handle(self.id)

    async def create(self, state: Mapping[str, Any] | None = None) -> "Session":
        """Start the session without a message.

        Raises:
            SessionExists: It is there already, or was.
        """
        given = self.given.model_copy(update={"state": dict(state or {})})
        try:
            await self.client.temporal.start_workflow(
                SESSION_WORKFLOW,
                given.model_dump(mode="json", exclude_defaults=True),
                id=self.id,
                task_queue=self.client.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        except WorkflowAlreadyStartedError:
            raise errors.SessionExists(
                f"The session {self.id!r} exists; send to it, or give another one a name."
            ) from None
        return self

    async def send(
        self,
        message: str | JsonObject,
        *,
        message_id: str | None = None,
        when_busy: Busy = "queue",
        state: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
        metadata: Mapping[str, Any] | None = None,
        streaming: bool = False,
        create: bool = True,
        confirm_within: timedelta = CONFIRMATION_LIMIT,
    ) -> "Sent":
        """Send a message, and learn at once which invocation it goes to.

        Args:
            message: Text, or a genai Content as JSON.
            message_id: An id of your own; each id is accepted once, so that sending can be repeated.
            when_busy: What to do while the session works on another message: queue this one, refuse it, or hand it
                to the running invocation.
            state: Changes of the session's state, made when its invocation begins.
            budget: Limits of the invocation.
            metadata: Recorded, not shown to the model.
            streaming: Whether text can be read while a model still generates it.
            create: Whether a session that does not exist begins with this message.
            confirm_within: How long to wait for a worker to take it.

        Raises:
            SessionRefused: It was not accepted; the class says why.
            NotJson: The message or the state contains a value that JSON cannot hold.
            MessageUnconfirmed: No worker confirmed it in time. It may still be accepted later; send it again with the
                same `message_id` to find out.
        """
        optional = {
            "message_id": message_id,
            "when_busy": when_busy if when_busy != "queue" else None,
            "state": dict(state) if state else None,
            "budget": budget.model_dump(exclude_defaults=True) if budget else None,
            "metadata": dict(metadata) if metadata else None,
            "streaming": streaming or None,
        }
        given = plain({"message": message, **{key: value for key, value in optional.items() if value}})
        check_size(encode(given))
        opened = self.started_invocations.opened
        receipt = await self._update(SEND, given, create=create, within=confirm_within)
        new = opened and receipt["status"] in ("started", "queued")
        return Sent(self, receipt["invocation_id"], receipt["status"], bool(receipt.get("duplicate")), new=new)

    async def say(self, message: str | JsonObject, **options: Any) -> InvocationResult:
        """Send a message and wait for the result; see `send` and `Sent.result`."""
        return await (await self.send(message, **options)).result()

    def invocation(self, number: int) -> "SessionInvocation":
        """Return the invocation of that number, from 1; one that still waits for its turn is waited for."""
        handle = self.client.temporal.get_workflow_handle(ids.session_invocation(self.id, number))
        return SessionInvocation(self.client, handle, self.started_invocations)

    async def close(self, *, confirm_within: timedelta = CONFIRMATION_LIMIT) -> JsonObject:
        """Stop accepting messages; the session ends when its invocations have.

        Raises:
            UnknownSession: It does not exist.
            SessionClosed: It is over already.
        """
        return await self._update(CLOSE, None, create=False, within=confirm_within)

    async def cancel(self) -> None:
        """Request cancellation of the session and its invocations; running tools are notified."""
        await self.handle.cancel()

    async def _update(self, name: str, given: JsonObject | None, *, create: bool, within: timedelta) -> JsonObject:
        # The server answers a used update id with its first outcome, whatever is sent; so each id is new.
        id = f"{name}-{digest([name, uuid.uuid4().hex])[:16]}"
        args = [] if given is None else [given]
        try:
            async with asyncio.timeout(within.total_seconds()):
                if create:
                    return await send_when_ready(functools.partial(self._update_with_start, name, args, id))
                receipt: JsonObject = await send_when_ready(
                    functools.partial(self.handle.execute_update, name, args=args, id=id)
                )
                return receipt
        except WorkflowUpdateFailedError as error:
            raise _refusal(error) from None
        except WorkflowAlreadyStartedError:
            raise self._closed() from None
        except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError):
            raise unless_cancelled(errors.MessageUnconfirmed(self.id)) from None
        except RPCError as error:
            if not is_not_found(error):
                raise
            with suppress(RPCError):
                await self.handle.describe()
                raise self._closed() from None
            raise unknown_session(self.id) from None

    async def _update_with_start(self, name: str, args: list[JsonObject], id: str) -> JsonObject:
        beginning = self._beginning()
        try:
            receipt: JsonObject = await self.client.temporal.execute_update_with_start_workflow(
                name, args=args, start_workflow_operation=beginning, id=id
            )
        except BaseException:
            # The SDK keeps the error there as well, and the event loop complains when nobody looks.
            with suppress(Exception):
                async with asyncio.timeout(0):
                    await beginning.workflow_handle()
            raise
        return receipt

    def _beginning(self) -> WithStartWorkflowOperation[Any, Any]:
        return WithStartWorkflowOperation(
            SESSION_WORKFLOW,
            self.given.model_dump(mode="json", exclude_defaults=True),
            id=self.id,
            task_queue=self.client.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        )

    def _closed(self) -> errors.SessionClosed:
        return errors.SessionClosed(f"The session {self.id!r} is over; begin another one.")

    async def events(self, *, start: int = 0) -> list[Event]:
        """Return the events of the conversation from index `start` on. No worker has to run.

        Of an invocation that is at work there is only its message; `follow` tells more.
        """
        return (await self._reader()).transcript.events[start:]

    async def follow(self) -> AsyncIterator[Event]:
        """Yield all events, recorded and future ones, until the session ends.

        Events of concurrent invocations come as soon as they are recorded. Waiting uses the server's long poll: it
        involves no worker and adds nothing to histories.

        Raises:
            UnknownSession: There is no such session.
        """
        invocations = StartedInvocations(self.client.temporal, self.id)
        # In this order: what the session knows by now is among the events that are read next.
        await invocations.caught_up()
        reported = set(invocations.reported)
        recorded = await self.events()
        for event in recorded:
            yield event
        known = count_events(recorded)
        async with aclosing(stream_session(self.client, invocations, known=known, passed_over=reported)) as updates:
            async for update in updates:
                for event in update.events:
                    yield event

    async def pending(self) -> list[PendingCall]:
        """Return the pending calls of the session, including those of called agents. No worker has to run.

        It comes from visibility, which may lag behind by a second.
        """
        return await Approvals(self.client).pending(below=self.id)

    async def state(self) -> JsonObject:
        """Return the state that the next invocation would start with, `user:` and `app:` keys included.

        No worker has to run.
        """
        own = (await self._reader()).state
        given, scopes = self.given, ScopedState(self.client.temporal)
        app, user = await asyncio.gather(scopes.app(app=given.app), scopes.user(app=given.app, user_id=given.user_id))
        return {**app, **user, **own}

    async def invocations(self) -> list[JsonObject]:
        """Return the invocations that are open or queued, and the latest of the others, as the workflow lists them."""
        listed: JsonObject = await self.handle.query("invocations")
        return list(listed["invocations"])

    async def _reader(self) -> SessionReader:
        reader = SessionReader(self.id, self._blobs)
        try:
            events = (await self.handle.fetch_history()).events
        except RPCError as error:
            if not is_not_found(error):
                raise
            raise unknown_session(self.id) from None
        await reader.read(await decode_events(events, self.client.temporal.data_converter))
        reader.transcript.flush()
        return reader


def _refusal(error: WorkflowUpdateFailedError) -> Exception:
    cause = error.cause
    if isinstance(cause, ApplicationError):
        kind = getattr(errors, cause.type or "", None)
        if isinstance(kind, type) and issubclass(kind, errors.SessionRefused | errors.InvalidInput):
            return kind(cause.message)
    return error


class SessionInvocation(Invocation):
    """An invocation that may still be queued: its methods first wait for its start, by the server's long poll."""

    def __init__(
        self, client: ClientContext, handle: WorkflowHandle[Any, Any], started: StartedInvocations, *, new: bool = False
    ) -> None:
        super().__init__(client, handle)
        self._started: StartedInvocations | None = started
        self._new = new

    async def started(self) -> None:
        """Wait until it has started.

        Raises:
            SessionClosed: The session ended before it started.
        """
        if self._started is not None:
            await self._started.until(self.id, new=self._new)
            self._started = None

    async def result(self) -> InvocationResult:
        """Wait for the end and return the result; see `Invocation.result`."""
        await self.started()
        return await super().result()

    async def history(self) -> WorkflowHistory:
        """Return what Temporal recorded."""
        await self.started()
        return await super().history()

    async def follow(self) -> AsyncIterator[Log]:
        """Yield the log whenever history has grown, until the invocation ends; see `Invocation.follow`."""
        await self.started()
        async for log in super().follow():
            yield log

    async def pending(self) -> list[PendingCall]:
        """Return what waits for a person. No worker has to run."""
        await self.started()
        return await super().pending()

    async def answer(self, action: Action, function_call_id: str | None = None, **options: Any) -> JsonObject:
        """Answer a call that waits; see `Invocation.answer`."""
        await self.started()
        return await super().answer(action, function_call_id, **options)

    async def cancel(self) -> None:
        """Ask it to end; see `Invocation.cancel`."""
        await self.started()
        await super().cancel()


class Sent(SessionInvocation):
    """The invocation that a message goes to, and whether it started one."""

    def __init__(
        self, session: Session, invocation_id: str, status: str, duplicate: bool = False, *, new: bool = False
    ) -> None:
        handle: WorkflowHandle[Any, Any] = session.client.temporal.get_workflow_handle(invocation_id)
        super().__init__(session.client, handle, session.started_invocations, new=new)
        self.session = session
        self.status = status
        """`started`, `queued` or `joined`; for a repeated message, the status of its invocation."""
        self.duplicate = duplicate
        """Whether an earlier message with the same `message_id` was accepted; then that one counts, and not this."""

    @property
    def invocation_id(self) -> str:
        """Id of the invocation."""
        return self.id

    async def invocation(self) -> "Sent":
        """Wait until the invocation has begun, and return it."""
        await self.started()
        return self
