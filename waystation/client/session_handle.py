"""One session: send messages, and follow the invocations that it starts."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from pydantic import ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from waystation.client.approvals import Approvals
from waystation.client.invocation_handle import (
    ArtifactSaver,
    ClientContext,
    EventStream,
    Invocation,
    check_owner,
    confirm_update,
    make_priority,
    new_events,
    stream_logs,
    translate_update_error,
)
from waystation.client.session_management import ScopedState
from waystation.client.token_encryption import Token
from waystation.core import errors, ids
from waystation.core.approval import PendingCall
from waystation.core.budget import Budget
from waystation.core.contract import (
    CHANGE_STATE,
    CLOSE,
    DEFAULT_APP,
    DEFAULT_USER,
    SEND,
    SESSION_WORKFLOW,
    TASK_TIMEOUT,
    WORKFLOW,
    Event,
    InvocationInput,
    InvocationResult,
    message_request,
    streaming_fields,
)
from waystation.core.log import Log, MessageJoined
from waystation.core.payload import JsonObject, decode, describe_faults, encode, to_plain_json
from waystation.core.session_log import OPEN_STATUSES, Busy, SessionInput, check_message_size
from waystation.history import (
    EventType,
    HistoryPoll,
    SessionReader,
    decode_events,
    describe_workflow,
    fetch_or_none,
    fetch_runs,
    get_attributes,
    is_not_found,
    read_json_content,
)
from waystation.storage import Blobs
from waystation.trace_context import find_traceparent

CONFIRMATION_LIMIT = timedelta(seconds=30)
"""Time limit for a worker to confirm a message."""
BACKLOG = 100
"""Maximum number of buffered updates. When the buffer is full, no histories are read until there is room again."""


class Session:
    """A conversation between a user and an agent."""

    def __init__(
        self,
        client: ClientContext,
        *,
        agent: str,
        session_id: str,
        user_id: str = DEFAULT_USER,
        app: str = DEFAULT_APP,
        tenant: str | None = None,
        blobs: Blobs | None = None,
        priority: int | None = None,
    ) -> None:
        """Create a handle for a session, whether or not the session exists.

        `blobs` is the workers' store for data that they move out of histories. Defaults to the client's `blobs`.
        `priority` applies to all invocations of a session that this handle starts; see `AgentClient.start`.

        Raises:
            ValueError: A name is empty or too long for a workflow ID.
            InvalidInput: The priority is not valid.
        """
        self.client = client
        try:
            self.given = SessionInput(agent=agent, app=app, user_id=user_id, session_id=session_id, tenant=tenant)
        except ValidationError as error:
            raise ValueError(f"The session's names are not valid: {describe_faults(error)}.") from None
        self.id = ids.session(self.given.app_key, user_id, session_id)
        """The session's workflow ID."""
        self._blobs = blobs or client.blobs
        self._priority = make_priority(self.given.app_key, user_id, priority)

    @cached_property
    def started_invocations(self) -> "StartedInvocations":
        """The invocations that the session has started."""
        return StartedInvocations(self.client.temporal, self.id)

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        """Temporal's workflow handle for the current run."""
        return self.client.temporal.get_workflow_handle(self.id)

    async def create(self, state: Mapping[str, Any] | None = None) -> "Session":
        """Start the session without sending a message.

        Raises:
            SessionExists: The session exists or used to exist.
            UserForgotten: The data of the user is being deleted.
            UnknownAgent: Workers have announced their agents in this namespace, but none has announced this one.
            NotJson: A value of the state cannot be recorded.
        """
        if self.given.agent:  # otherwise, the messages name it
            await self.client.agents.check(self.given.agent)
        await check_owner(self.client, self.id, self.given.app_key, self.given.user_id)
        session_input = self.given.model_copy(update=to_plain_json({"state": dict(state or {})}))
        try:
            await self.client.temporal.start_workflow(
                SESSION_WORKFLOW,
                session_input.model_dump(mode="json", exclude_defaults=True),
                id=self.id,
                task_queue=self.client.task_queue,
                task_timeout=TASK_TIMEOUT,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                priority=self._priority,
            )
        except WorkflowAlreadyStartedError:
            raise errors.SessionExists(
                f"The session {self.id!r} already exists. Send messages to it, or choose a different `session_id`."
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
        requester: str | None = None,
        token: Token | None = None,
        streaming: bool | timedelta = False,
        agent: str | None = None,
        create: bool = True,
        confirm_within: timedelta = CONFIRMATION_LIMIT,
    ) -> "Sent":
        """Send a message, and return the invocation that handles it once a worker confirms the message.

        Args:
            message: Text, or a genai `Content` as JSON.
            message_id: An ID that you choose. Each ID is accepted only once, so it is safe to send a message again.
            when_busy: What to do while the session is handling another message: `queue` this message, `reject` it, or
                let it `join` the running invocation. If it arrives too late for that, it starts one of its own, which
                `Sent.result` and `Sent.invocation` follow.
            state: Changes to the session's state, applied when the invocation starts.
            budget: Limits for the invocation.
            metadata: Recorded with the message, but not sent to the model.
            requester: The person or program that sends the message, if different from the session's user; see
                `AgentClient.start`.
            token: Proves the sender's identity; see `AgentClient.start`. Each message of the session needs its own.
            streaming: Make the model's text available while it is being generated; see `AgentClient.start`.
            agent: Name of the root agent that handles this message and those after it. By default, the agent does not
                change.
            create: Whether to start the session if it does not exist.
            confirm_within: Time limit for a worker to confirm the message.

        Raises:
            SessionRefused: The message was refused; the subclass gives the reason.
            UserForgotten: The data of the user is being deleted.
            NotJson: The message or the state contains a value that is not valid JSON.
            InvalidConfiguration: No key is configured for encrypting the token.
            MessageUnconfirmed: No worker confirmed the message in time. It may still be accepted later. To find out,
                send the message again with the same `message_id`.
            UnknownAgent: Workers have announced their agents in this namespace, but none has announced this one. Not
                raised if `create` is False.
        """
        if create:
            await self.client.agents.check(self.given.agent)
        await check_owner(self.client, self.id, self.given.app_key, self.given.user_id)
        optional = {
            "message_id": message_id or (uuid.uuid4().hex if token is not None or when_busy == "join" else None),
            "when_busy": when_busy if when_busy != "queue" else None,
            "state": dict(state) if state else None,
            "budget": budget.model_dump(exclude_defaults=True) if budget else None,
            "metadata": dict(metadata) if metadata else None,
            "requester": requester if requester != self.given.user_id else None,
            **streaming_fields(streaming),
            "agent": agent,
            "traceparent": find_traceparent(),
        }
        content = to_plain_json({"message": message, **{key: value for key, value in optional.items() if value}})
        if token is not None:
            place = {"namespace": self.client.temporal.namespace, "approval_id": self.id}
            request = message_request(content["message"], content["message_id"])
            content["token"] = self.client.token_encryption.encrypt(token, **place, answer=request)
        check_message_size(encode(content))
        receipt = await self._update(SEND, content, create=create, within=confirm_within)
        joined = (receipt["join"], content["message_id"]) if "join" in receipt else None
        return Sent(self, receipt["invocation_id"], receipt["status"], bool(receipt.get("duplicate")), joined=joined)

    async def say(self, message: str | JsonObject, **options: Any) -> InvocationResult:
        """Send a message and wait for the result; see `send` and `Sent.result`."""
        return await (await self.send(message, **options)).result()

    async def change_state(self, state: Mapping[str, Any], *, change_id: str | None = None) -> None:
        """Change the state that the next invocation starts with. This does not require a running worker.

        Args:
            state: The new values. Keys that begin with `temp:`, `user:` or `app:` are ignored.
            change_id: An ID that you choose. Each ID counts only once, so it is safe to send a change again.

        Raises:
            NotJson: A value is not valid JSON.
            UnknownSession: The session does not exist.
            SessionClosed: The session has ended.
        """
        content = to_plain_json({"state": dict(state), **({"change_id": change_id} if change_id else {})})
        check_message_size(encode(content))
        try:
            await self.handle.signal(CHANGE_STATE, content)
        except RPCError as error:
            if not is_not_found(error):
                raise
            raise await _make_closed_error(self) from None

    async def save_artifact(
        self, name: str, data: bytes | str, *, artifacts: ArtifactSaver | None = None, mime_type: str | None = None
    ) -> int:
        """Save a file that the session's tools can load, whether or not the session exists, and return its version.

        Each call saves a new version. This does not require a running worker.

        Args:
            name: The name of the artifact. With the prefix `user:`, it belongs to all sessions of the user.
            data: The content. Text is saved as text, or encoded as UTF-8 if it has a `mime_type`.
            artifacts: The workers' artifact service. By default, the one that the client was connected with, or that
                the project file names.
            mime_type: The type of the content. Defaults to `application/octet-stream` for bytes.

        Raises:
            InvalidInput: The name is empty.
            InvalidConfiguration: The client does not know the artifact service.
            UserForgotten: The data of the user is being deleted.
            StoreFailed: The artifact service is unavailable.
        """
        if not name:
            raise errors.InvalidInput("The artifact has no name. Pass a name such as 'invoice.pdf'.")
        await check_owner(self.client, self.id, self.given.app_key, self.given.user_id)
        if isinstance(data, str) and mime_type is None:
            part: JsonObject = {"text": data}
        else:
            content = data.encode() if isinstance(data, str) else data
            part = {"inline_data": {"mime_type": mime_type or "application/octet-stream", "data": content}}
        saver = artifacts or await self.client.open_artifacts()
        return await saver.save_artifact(**self.given.artifact_scope, filename=name, artifact=part)

    def invocation(self, number: int) -> "SessionInvocation":
        """Return the invocation with this number, starting at 1. Its methods wait until it has started."""
        return SessionInvocation(self, ids.session_invocation(self.id, number))

    async def close(self, *, confirm_within: timedelta = CONFIRMATION_LIMIT) -> JsonObject:
        """Stop accepting messages. The session ends as soon as all of its invocations have ended.

        Raises:
            UnknownSession: The session does not exist.
            SessionClosed: The session has already ended.
            MessageUnconfirmed: No worker confirmed the request in time. The session may still be closed later.
        """
        return await self._update(CLOSE, None, create=False, within=confirm_within)

    async def cancel(self) -> None:
        """Request cancellation of the session and its invocations. Running tools are notified."""
        await self.handle.cancel()

    async def _update(self, name: str, content: JsonObject | None, *, create: bool, within: timedelta) -> JsonObject:
        args = [] if content is None else [content]

        async def send(id: str) -> Any:
            if create:
                return await self._update_with_start(name, args, id)
            return await self.handle.execute_update(name, args=args, id=id)

        try:
            return await confirm_update(send, name=name, within=within, unconfirmed=errors.MessageUnconfirmed(self.id))
        except WorkflowUpdateFailedError as error:
            raise translate_update_error(error, errors.SessionRefused, errors.InvalidInput) from None
        except WorkflowAlreadyStartedError:
            pass
        except RPCError as error:
            if not is_not_found(error):
                raise
        raise await _make_closed_error(self)

    async def _update_with_start(self, name: str, args: list[JsonObject], id: str) -> Any:
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            SESSION_WORKFLOW,
            self.given.model_dump(mode="json", exclude_defaults=True),
            id=self.id,
            task_queue=self.client.task_queue,
            task_timeout=TASK_TIMEOUT,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            priority=self._priority,
        )
        try:
            return await self.client.temporal.execute_update_with_start_workflow(
                name, args=args, start_workflow_operation=start, id=id
            )
        except BaseException:
            # The SDK also sets the error on the workflow handle. Retrieve it here, or the event loop logs a warning.
            with suppress(Exception):
                async with asyncio.timeout(0):
                    await start.workflow_handle()
            raise

    def events(self, *, start: int = 0) -> EventStream:
        """Return the events of the conversation from index `start` on. This does not require a running worker.

        A running invocation contributes only its message; use `follow` to get its other events.
        """

        async def read() -> AsyncGenerator[Event]:
            for event in (await self._read_history()).transcript.events[start:]:
                yield event

        return EventStream(read())

    async def logs(self, *, last: int | None = None) -> list[Log]:
        """Return the log of each invocation, or of the `last` ones, in the order in which they started.

        Open invocations are read from their own histories. This does not require a running worker.
        """
        logs = [*(await self._read_history()).transcript.logs.values()][-last if last else 0 :]

        async def read(log: Log) -> Log:
            if log.state.outcome.ended:
                return log
            latest = await fetch_or_none(Invocation.from_id(self.client, log.invocation_id).log())
            return latest if latest and latest.state.events else log  # without events, no worker has begun it

        return list(await asyncio.gather(*map(read, logs)))

    async def follow(self, *, partial: bool = False) -> AsyncIterator[Event]:
        """Yield all past events, then new ones until the session ends.

        With `partial`, also yield the unfinished text of messages that were sent with `streaming`; see
        `Invocation.stream`. The `invocation_id` of an event tells texts of concurrent invocations apart.

        Events of concurrent invocations are yielded as soon as they are recorded. The session is followed by long
        polling, which does not require a worker and adds nothing to histories.

        Raises:
            UnknownSession: The session does not exist.
        """
        invocations = StartedInvocations(self.client.temporal, self.id)
        # Catch up first, so that the events read next include those of every invocation in `reported`.
        await invocations.caught_up()
        reported = set(invocations.reported)
        recorded = await self.events()
        for event in recorded:
            yield event
        known = count_events(recorded)
        stream = stream_session(self.client, invocations, known=known, passed_over=reported, partial=partial)
        async with aclosing(stream) as updates:
            async for update in updates:
                for event in update.events:
                    yield event

    async def pending(self) -> list[PendingCall]:
        """Return the session's pending calls, including those of called agents. This does not require a running worker.

        Pending calls are read from visibility, which may lag by a second.
        """
        return await Approvals(self.client).pending(below=self.id)

    async def state(self) -> JsonObject:
        """Return the state that the next invocation would start with, including `user:` and `app:` keys.

        This does not require a running worker.
        """
        own, scopes = (await self._read_history()).state, ScopedState(self.client.temporal)
        app, user = await asyncio.gather(
            scopes.app(app=self.given.app, tenant=self.given.tenant),
            scopes.user(app=self.given.app, user_id=self.given.user_id, tenant=self.given.tenant),
        )
        return {**app, **user, **own}

    async def invocations(self) -> list[JsonObject]:
        """Query the workflow for its open, queued and most recently closed invocations."""
        return list((await self.handle.query("invocations"))["invocations"])

    async def wait_for_message(self, message_id: str) -> str:
        """Wait until a message that was to join an invocation has started one of its own, and return that one's ID.

        Raises:
            SessionClosed: The session ended before.
            UnknownSession: The session does not exist.
        """
        temporal, watch = self.client.temporal, StartedInvocations(self.client.temporal, self.id)
        while True:
            await watch.caught_up()
            for run in await fetch_runs(temporal, await self.handle.fetch_history()):
                if id := _find_invocation(await decode_events(run.events, temporal.data_converter), message_id):
                    return id
            if watch.over:
                raise await _make_closed_error(self)
            await watch.more()

    async def _read_history(self) -> SessionReader:
        history = await fetch_or_none(self.handle.fetch_history())
        if history is None:
            raise make_unknown_session_error(self.id)
        reader = SessionReader(self.id, self._blobs)
        await reader.read(await decode_events(history.events, self.client.temporal.data_converter))
        reader.transcript.flush()
        return reader


async def _make_closed_error(session: Session) -> errors.SessionRefused:
    if await fetch_or_none(session.handle.describe()) is None:
        return make_unknown_session_error(session.id)
    return errors.SessionClosed(f"The session {session.id!r} has ended. Start a new session.")


class SessionInvocation(Invocation):
    """An invocation that may still be queued. Its methods first wait (by long polling) until it has started."""

    def __init__(self, session: Session, invocation_id: str) -> None:
        super().__init__(session.client, session.client.temporal.get_workflow_handle(invocation_id))
        self.session = session
        self._has_started = False

    async def started(self) -> None:
        """Wait until the invocation has started.

        Raises:
            SessionClosed: The session ended before the invocation started.
        """
        if not self._has_started:
            await self.session.started_invocations.until(self.id)
            self._has_started = True


class Sent(SessionInvocation):
    """The invocation that handles a message, or for a message that joined, the one that was to receive it."""

    def __init__(
        self,
        session: Session,
        invocation_id: str,
        status: str,
        duplicate: bool = False,
        *,
        joined: tuple[int, str] | None = None,
    ) -> None:
        """Create the handle. `joined` has the number and the ID of a joined message that is not confirmed yet."""
        super().__init__(session, invocation_id)
        self._joined = joined
        self.status = status
        """`started`, `queued` or `joined`. For a message that was sent before, the status of its invocation."""
        self.duplicate = duplicate
        """Whether this message was ignored because an earlier message with the same `message_id` was accepted."""

    @property
    def invocation_id(self) -> str:
        """The ID of this invocation."""
        return self.id

    async def result(self) -> InvocationResult:
        """Wait until the invocation that handles the message ends, and return its result; see `Invocation.result`.

        Raises:
            SessionClosed: The session ended before the invocation started.
        """
        invocation = await self.invocation()
        return await (super().result() if invocation is self else invocation.result())

    async def invocation(self) -> "Sent":
        """Wait until the invocation that handles the message has started, and return it.

        This is another one if the message was to join an invocation and arrived too late.

        Raises:
            SessionClosed: The session ended before the invocation started.
        """
        if self._joined and not await self._is_received(self._joined[0]):
            return Sent(self.session, await self.session.wait_for_message(self._joined[1]), "started")
        await self.started()
        return self

    async def _is_received(self, join: int) -> bool:
        """Wait until the invocation has a joined message or has ended, and return whether it has the message."""
        async with aclosing(stream_logs(self, partial=False)) as logs:
            async for log, _ in logs:
                if any(isinstance(entry.body, MessageJoined) and entry.body.join == join for entry in log.entries):
                    return True
        return False


class StartedInvocations:
    """The invocations that a session has started, read by long-polling the histories of its runs."""

    def __init__(self, client: Client, session: str) -> None:
        self._client, self._session = client, session
        self._pages, self._last = HistoryPoll(client, session), 0
        self._reading = asyncio.Lock()
        self.order: list[str] = []
        """IDs of the invocations that were open at the start of the first run that was read or have started since."""
        self.reported: set[str] = set()
        """IDs of closed invocations whose events are in the session's own history."""
        self.over = False
        """Whether the session has ended."""

    async def until(self, invocation_id: str) -> None:
        """Wait until an invocation has started.

        Raises:
            SessionClosed: The session ended before the invocation started.
            UnknownSession: The session does not exist.
        """
        # The invocation may have started in an earlier run of the session.
        if invocation_id not in self.order and await describe_workflow(self._client, invocation_id):
            return
        while invocation_id not in self.order:
            if not await self.more() and invocation_id not in self.order:
                raise errors.SessionClosed(
                    f"The session {self._session!r} ended before {invocation_id!r} started. Start a new session."
                )

    async def more(self) -> bool:
        """Wait for the history to grow, unless the session has ended, and return whether it can still grow."""
        async with self._reading:
            if not self.over:
                await self._read()
            return not self.over

    async def caught_up(self) -> None:
        """Read the history up to its current end."""
        described = await describe_workflow(self._client, self._session)
        if described is None:
            raise make_unknown_session_error(self._session)
        async with self._reading:
            while not self.over and self._last < described.history_length:
                await self._read()

    async def _read(self) -> None:
        page = await fetch_or_none(self._pages.page())
        if page is None:
            self._pages = HistoryPoll(self._client, self._session)
            raise make_unknown_session_error(self._session)
        following: str | None = None
        for event in page:
            self._last = event.event_id
            following = self._take(event) or following
        if following := following or await self._pages.replaced_by():
            self._pages, self._last = HistoryPoll(self._client, self._session, following), 0
        elif not self._pages.more:
            self.over = True

    def _take(self, event: HistoryEvent) -> str | None:
        attributes = get_attributes(event)
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                carried = SessionInput.model_validate(decode(read_json_content(attributes.input.payloads))).carried
                for turn in carried.turns if carried else ():
                    if turn.status in OPEN_STATUSES:
                        self._add(ids.session_invocation(self._session, turn.n))
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
                if attributes.workflow_type.name == WORKFLOW:
                    self._add(attributes.workflow_execution.workflow_id)
            case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
                report = InvocationResult.model_validate(decode(read_json_content(attributes.result.payloads))).report
                if report and report.entries is not None:
                    self.reported.add(attributes.workflow_execution.workflow_id)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                return str(attributes.new_execution_run_id)
        return None

    def _add(self, invocation_id: str) -> None:
        if invocation_id not in self.order:
            self.order.append(invocation_id)


def _find_invocation(events: Iterable[HistoryEvent], message_id: str) -> str | None:
    """Return the ID of the invocation that a run of a session started for a message, or None if it started none."""
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            attributes = get_attributes(event)
            if attributes.workflow_type.name == WORKFLOW:
                started = InvocationInput.model_validate(decode(read_json_content(attributes.input.payloads)))
                if started.session and started.session.message_id == message_id:
                    return str(attributes.workflow_id)
    return None


def make_unknown_session_error(id: str) -> errors.UnknownSession:
    """Return the error for a session that does not exist."""
    return errors.UnknownSession(
        f"There is no session {id!r}. `waystation sessions` lists all sessions with their users and apps."
    )


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """New events of one invocation."""

    invocation: Invocation
    log: Log
    """The invocation's complete log. Unless the invocation is reset, its updates share this object, which grows."""
    events: list[Event]


def count_events(events: list[Event]) -> Counter[str]:
    """Count events by invocation ID."""
    return Counter(event.invocation_id for event in events)


async def stream_session(
    client: ClientContext,
    invocations: StartedInvocations,
    *,
    known: Mapping[str, int],
    passed_over: set[str],
    partial: bool = False,
) -> AsyncGenerator[SessionUpdate]:
    """Yield new events of a session's invocations until the session ends.

    Args:
        client: The client that reads the histories.
        invocations: The session's invocations.
        known: Number of events to skip, by invocation ID.
        passed_over: IDs of invocations to skip.
        partial: Also yield a model's unfinished text.
    """
    updates: asyncio.Queue[SessionUpdate | Exception | None] = asyncio.Queue(BACKLOG)

    async def follow(invocation_id: str) -> None:
        invocation = Invocation.from_id(client, invocation_id)
        start = known.get(invocation_id, 0)
        async with aclosing(stream_logs(invocation, partial=partial)) as logs:
            async for log, pieces in logs:
                update = SessionUpdate(invocation, log, new_events(log, start, pieces))
                start = max(start, len(log.state.events))
                await updates.put(update)  # the log may grow while this waits

    async def follow_all() -> None:
        count = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                more = True
                while more or count < len(invocations.order):
                    for invocation_id in invocations.order[count:]:
                        count += 1
                        if invocation_id not in passed_over:
                            tasks.create_task(follow(invocation_id))
                    more = await invocations.more() if more else False
        except Exception as error:  # noqa: BLE001  # raised to the reader of the updates
            await updates.put(_first_error(error))
        else:
            await updates.put(None)

    task = asyncio.create_task(follow_all())
    try:
        while (update := await updates.get()) is not None:
            if isinstance(update, Exception):
                raise update
            yield update
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _first_error(error: Exception) -> Exception:
    """Return the first error in a possibly nested exception group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
