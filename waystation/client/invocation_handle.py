"""One invocation: start it, follow it, stream its events, answer its pending calls.

Events come from the server's long poll of the history, partial text of a model from the heartbeats of its activity. So
a stream adds nothing to the history and needs no worker. While an invocation waits for an approver, it costs nothing.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from waystation.client.search_attributes import AGENT, PENDING, make_start_attributes
from waystation.client.token_encryption import Token, TokenEncryption
from waystation.core import (
    ANSWER_SIGNAL,
    ANSWER_UPDATE,
    MEMO_PENDING,
    MODEL,
    WORKFLOW,
    Action,
    AgentRun,
    Event,
    InvalidInput,
    InvocationInput,
    InvocationResult,
    JsonObject,
    Log,
    ModelReplied,
    ModelReplyRef,
    PartialText,
    PartialTexts,
    PendingCall,
    Piece,
    StoreFailed,
    check_size,
    encode,
    errors,
    ids,
    parse_answer,
    summary,
)
from waystation.core.approval import decision
from waystation.history import (
    SavedHistory,
    build_log,
    check_readable,
    decode_histories,
    fetch_log_before,
    fetch_runs,
    fetch_saved_history,
    follow_log,
    is_not_found,
    read_history_file,
)
from waystation.storage import INLINE_LIMIT, STORE_VARIABLE, UNREADABLE, Blobs

CONFIRMATION_LIMIT = timedelta(seconds=15)
"""Time limit for a worker's confirmation of an answer. After a crash, it takes the sticky timeout of 1 s and a replay;
a task lost with its worker goes to another one after 10 s."""
_REFUSALS = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.RESOURCE_EXHAUSTED)
"""The server's refusals of a large input; the second one is for messages over 4 MB, the limit of gRPC."""
RESEND_PAUSE_S = 0.2
LOOK_S = 0.1
"""Interval for reading heartbeats while a model generates text. Workers send them at most this often."""


class ClientContext(Protocol):
    """The part of an `AgentClient` that its invocations, sessions and collections use."""

    temporal: Client
    """Temporal's own client."""
    task_queue: str
    blobs: Blobs
    token_encryption: TokenEncryption

    async def searchable(self) -> bool:
        """Whether the namespace has Waystation's search attributes."""


class StoredCredential(Protocol):
    """A credential that a store has accepted."""

    @property
    def calls(self) -> Sequence[tuple[str, str]]:
        """The calls that wait for it, each as invocation id and function call id."""


class CredentialKeeper(Protocol):
    """A store for users' credentials, such as `waystation.auth.CredentialStore`."""

    async def authorize(
        self,
        *,
        auth_response_uri: str | None = None,
        credential: Any = None,
        call: tuple[str, str] | None = None,
    ) -> StoredCredential:
        """Store a credential, or finish a login."""


class Invocation:
    """One invocation of an agent."""

    def __init__(self, client: ClientContext, handle: WorkflowHandle[Any, Any], *, existed: bool = False) -> None:
        self.client = client
        """The client that made this object."""
        self.handle = handle
        """Temporal's own handle."""
        self.existed = existed
        """Whether the invocation existed before `start`."""

    @classmethod
    def from_id(cls, client: ClientContext, id: str, *, run_id: str | None = None) -> "Invocation":
        """Return the invocation of that id, whether or not it exists."""
        return Invocation(client, client.temporal.get_workflow_handle(id, run_id=run_id))

    @property
    def id(self) -> str:
        """Id of the invocation and of its workflow."""
        return self.handle.id

    @property
    def converter(self) -> DataConverter:
        """The client's data converter."""
        return self.client.temporal.data_converter

    async def started(self) -> None:
        """Wait until the invocation has started. Only invocations of sessions may be queued."""

    async def result(self) -> InvocationResult:
        """Wait for the end and return the result.

        Raises:
            WorkflowFailureError: The invocation failed or was cancelled; see the cause.
            StoreFailed: The result is large, and the client's store does not have it.
        """
        await self.started()
        try:
            return InvocationResult.model_validate(await self.handle.result())
        except KeyError as error:  # the SDK's error for a payload that the converter cannot decode
            if UNREADABLE["encoding"].decode() not in str(error):
                raise
            raise StoreFailed(
                "this client",
                f"it does not have the result of {self.id!r}. Use the workers' store (--store, {STORE_VARIABLE}).",
            ) from None

    async def history(self) -> WorkflowHistory:
        """Return the history of the latest run; see `histories` for all runs."""
        await self.started()
        return await self.handle.fetch_history()

    async def log(self) -> Log:
        """Return the current log, rebuilt from history. No worker has to run."""
        latest = await decode_histories([await self.history()], self.converter)
        return build_log(
            latest,
            await fetch_log_before(self.client.temporal, self.id, latest[0].events[0], self.client.blobs.get),
        )

    async def histories(self) -> list[WorkflowHistory]:
        """Return the histories of all runs that the server still has, oldest first."""
        return await fetch_runs(self.client.temporal, await self.history())

    async def saved(self) -> SavedHistory:
        """Return the content of `waystation history`: the histories of the invocation and of the agents it called."""
        return await fetch_saved_history(self.client.temporal, await self.history())

    async def state(self) -> JsonObject:
        """Return the current state. No worker has to run."""
        return (await self.log()).state.session.values

    async def events(self, *, start: int = 0, follow: bool = True) -> AsyncIterator[Event]:
        """Yield the events from index `start` on: as `stream`, or without `follow` only those already recorded."""
        if follow:
            async for event in stream_events(self, start=start):
                yield event
        else:
            for event in (await self.log()).state.events[start:]:
                yield event

    def stream(self, *, start: int = 0, partial: bool = False) -> AsyncIterator[Event]:
        """Yield past events, then new ones as they are recorded, until the invocation ends.

        Args:
            start: Number of events to skip. To resume, pass the `index` of the last event plus 1.
            partial: Also yield unfinished text of a model, as events with `partial`; see `waystation.core.partial`.
                Only invocations started with `streaming` have partial text.
        """
        return stream_events(self, start=start, partial=partial)

    async def follow(self) -> AsyncIterator[Log]:
        """Yield the log whenever the history has grown, until the invocation ends.

        It is the same object each time, except after a reset of the invocation.
        """
        await self.started()
        async for log in follow_log(self.client.temporal, self.handle, self.client.blobs.get):
            yield log

    async def pending(self) -> list[PendingCall]:
        """Return the pending calls. No worker has to run."""
        await self.started()
        description = await self.handle.describe()
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return []
        return parse_pending_calls(await description.memo(), description.typed_search_attributes)

    async def approve(self, function_call_id: str | None = None, **answer: Any) -> JsonObject:
        """Approve a call; see `answer`."""
        return await self.answer("approve", function_call_id, **answer)

    async def reject(self, function_call_id: str | None = None, **answer: Any) -> JsonObject:
        """Reject a call; see `answer`."""
        return await self.answer("reject", function_call_id, **answer)

    async def respond(self, response: JsonObject, function_call_id: str | None = None, **answer: Any) -> JsonObject:
        """Set the response of a long-running call; see `answer`."""
        return await self.answer("respond", function_call_id, response=response, **answer)

    async def authorize(
        self,
        function_call_id: str | None = None,
        *,
        store: CredentialKeeper,
        auth_response_uri: str | None = None,
        credential: Any = None,
        **answer: Any,
    ) -> JsonObject:
        """Store the credential that a call waits for, then approve all calls that wait for it; return the receipt.

        The credential goes directly into the store, never to Temporal.

        Args:
            function_call_id: The call; required when several are pending.
            store: The workers' store, such as `waystation.auth.EncryptedFileCredentialService`.
            auth_response_uri: The URI to which the provider redirected the user after the login.
            credential: The credential itself, as an `AuthCredential` or as text. Pass either this or the URI.
            answer: As for `answer`.

        Raises:
            AuthorizationFailed: The login does not belong to this call, or yields no token. The message contains no
                secret.
            AnswerRefused: The credential is stored, but the call is no longer pending.
        """
        call = (self.id, function_call_id or await _find_only_pending(self))
        stored = await store.authorize(auth_response_uri=auth_response_uri, credential=credential, call=call)
        receipt = await self.approve(call[1], **answer)
        await approve_calls(self.client, (other for other in stored.calls if tuple(other) != call))
        return receipt

    async def answer(
        self,
        action: Action,
        function_call_id: str | None = None,
        *,
        token: Token | None = None,
        signal: bool = False,
        confirm_within: timedelta = CONFIRMATION_LIMIT,
        **fields: Any,
    ) -> JsonObject:
        """Answer a pending call; return the receipt once a worker confirms that the answer counts.

        Args:
            action: `approve`, `reject`, `edit`, `respond`, `progress`, `claim`, `release`, `view`, `waive` or `cancel`.
            function_call_id: The call; required when several are pending.
            token: Proves the approver's identity. Encrypted with the client's `identity` before it is sent.
            signal: Send the answer without waiting for a worker. A refusal is then not reported.
            confirm_within: Time limit for a worker's confirmation.
            fields: Further fields of the wire contract's answer, such as `comment`, `by`, `response`, `digest`.

        Raises:
            AnswerRefused: The answer does not count; the subclass is the reason.
            AnswerUnconfirmed: No worker confirmed the answer in time. It may still count later.
            InvalidConfiguration: No key is configured to encrypt the token.
        """
        await self.started()
        call_id = function_call_id or await _find_only_pending(self)
        content = {"function_call_id": call_id, "action": action, **fields}
        answer = {key: value for key, value in content.items() if value is not None}
        if token is not None:
            answer["token"] = self.client.token_encryption.encrypt(
                token,
                namespace=self.client.temporal.namespace,
                approval_id=ids.approval(self.id, ids.requesting_call(call_id)),
                answer=answer,
            )
        check_size(encode(answer))
        try:
            if signal:
                await self.handle.signal(ANSWER_SIGNAL, answer)
                return {"sent": True}
            return await confirm_update(
                lambda id: self.handle.execute_update(ANSWER_UPDATE, answer, id=id),
                name="answer",
                within=confirm_within,
                unconfirmed=errors.AnswerUnconfirmed(self.id, call_id),
            )
        except WorkflowUpdateFailedError as error:
            if refusal := translate_answer_error(error):
                raise refusal from None
        except RPCError as error:
            if not is_not_found(error):
                raise
        raise _explain_late_answer(await self.log(), answer)

    async def cancel(self) -> None:
        """Request cancellation. Running tools are notified."""
        await self.started()
        await self.handle.cancel()


async def _find_only_pending(invocation: Invocation) -> str:
    waiting = [call.function_call_id for call in await invocation.pending()]
    if not waiting:
        # So that a second answer is refused as such, and not because no call is pending.
        calls = reversed((await invocation.log()).state.calls.values())
        waiting = [call.id for call in calls if call.requested_at is not None or call.answer][:1]
    if len(waiting) == 1:
        return waiting[0]
    problem = f"has several pending calls. Name one: {', '.join(waiting)}" if waiting else "has no pending call"
    raise errors.UnknownCall(f"{invocation.id!r} {problem}.")


async def approve_calls(client: ClientContext, calls: Iterable[tuple[str, str]]) -> list[JsonObject]:
    """Approve the calls that are still pending, each by invocation id and call id; return the receipts."""
    receipts = []
    for invocation_id, call_id in calls:
        # Calls that were cancelled or answered in the meantime are skipped.
        with suppress(errors.AnswerRefused, errors.AnswerUnconfirmed, RPCError):
            receipts.append(await Invocation.from_id(client, invocation_id).approve(call_id))
    return receipts


async def start_invocation(
    client: ClientContext, id: str, params: JsonObject, memo: JsonObject | None = None
) -> WorkflowHandle[Any, Any]:
    """Start an invocation with an input.

    Raises:
        WorkflowAlreadyStartedError: An invocation with this id exists or existed.
        InvalidInput: The input is too large for the server, and this client has no store for large payloads.
    """
    started = InvocationInput.model_validate(params)
    text = started.message if isinstance(started.message, str) else "…"
    try:
        return await client.temporal.start_workflow(
            WORKFLOW,
            params,
            id=id,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            task_queue=client.task_queue,
            static_summary=summary.clip(f"{started.agent}: {text}"),
            search_attributes=make_start_attributes(started) if await client.searchable() else None,
            memo=memo,
        )
    except RPCError as error:
        if error.status not in _REFUSALS or (size := len(encode(params))) <= INLINE_LIMIT:
            raise
        raise InvalidInput(
            f"The input has {size:,} bytes. Without a store for large payloads, the server's limit is "
            f"{INLINE_LIMIT:,}. Connect with the workers' store: `AgentClient.connect(store=...)`."
        ) from None


async def confirm_update(
    send: Callable[[str], Awaitable[JsonObject]], *, name: str, within: timedelta, unconfirmed: Exception
) -> JsonObject:
    """Send an update with `send`, which takes the update id, and return its receipt.

    The server refuses an update, without recording it, while the last workflow task has failed, for example because its
    worker was killed. Then the update is sent again until time is up.

    Raises:
        Exception: `unconfirmed`, when no worker confirmed the update in time.
        WorkflowUpdateFailedError: The workflow refused the update.
        RPCError: The server refused the update.
    """
    # A new id each time: for a used one, the server returns the first outcome, whatever is sent.
    id = f"{name}-{uuid.uuid4().hex[:16]}"
    try:
        # The SDK repeats the request while no worker runs; its timeout applies to each request only.
        async with asyncio.timeout(within.total_seconds()):
            while True:
                try:
                    return await send(id)
                except RPCError as error:
                    if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                        raise
                await asyncio.sleep(RESEND_PAUSE_S)
    except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError):
        task = asyncio.current_task()  # the SDK reports a cancellation of this task as a timeout
        raise asyncio.CancelledError() if task and task.cancelling() else unconfirmed from None


def translate_update_error(error: WorkflowUpdateFailedError, *kinds: type[errors.WaystationError]) -> Exception:
    """Return the workflow's refusal of an update as an error of one of these kinds; otherwise `error` itself."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        kind = getattr(errors, cause.type or "", None)
        if isinstance(kind, type) and issubclass(kind, kinds):
            return kind(cause.message)
    return error


def translate_answer_error(error: WorkflowUpdateFailedError) -> Exception | None:
    """Return the workflow's refusal of an answer; None when the invocation ended during the verification.

    In that case the server's error has no information about the answer.
    """
    refusal, cause = translate_update_error(error, errors.AnswerRefused), error.cause
    if refusal is error and isinstance(cause, ApplicationError):
        return None if cause.type == "AcceptedUpdateCompletedWorkflow" else errors.AnswerRefused(cause.message)
    return refusal


def _explain_late_answer(log: Log, answer: JsonObject) -> errors.AnswerRefused:
    """Return the refusal of an answer to a closed invocation."""
    parsed = parse_answer(encode(answer))
    try:
        decision.check_answer(log, parsed, time.time())
    except errors.DigestMismatch as mismatch:
        return mismatch
    except errors.AnswerRefused:
        pass
    return explain_closed_call(log, ids.requesting_call(parsed.function_call_id))


def explain_closed_call(log: Log, call_id: str) -> errors.AnswerRefused:
    """Return the error for a call that is not pending."""
    call, place = log.state.calls.get(call_id), f"call {call_id!r} of {log.invocation_id!r}"
    if call is None or not call.ever_waits:
        return errors.UnknownCall(f"There never was a pending {place}.")
    if call.expired:
        return errors.Expired(f"The deadline of {place} has passed; it was not approved.")
    if call.answer:
        return decision.already_answered_error(call)
    ended = log.state.outcome.ended
    reason = f"the invocation is {ended.replace('_', ' ')}" if ended else "it was closed without an answer"
    return errors.UnknownCall(f"C{place[1:]} is not pending any more: {reason}.")


def parse_pending_calls(memo: Mapping[str, Any], attributes: TypedSearchAttributes) -> list[PendingCall]:
    """Return the calls in a memo. Where search attributes exist, only those that the attributes list."""
    calls = [PendingCall.model_validate(call) for call in memo.get(MEMO_PENDING) or ()]
    listed = attributes.get(PENDING) or ()
    return [call for call in calls if attributes.get(AGENT) is None or call.function_call_id in listed]


async def stream_events(invocation: Invocation, *, start: int = 0, partial: bool = False) -> AsyncGenerator[Event]:
    """Yield events from index `start` on; see `Invocation.stream`."""
    async with aclosing(stream_logs(invocation, partial=partial)) as updates:
        async for log, pieces in updates:
            for event in new_events(log, start, pieces):
                yield event
            start = max(start, len(log.state.events))


async def stream_logs(invocation: Invocation, *, partial: bool) -> "AsyncGenerator[tuple[Log, PartialTextReader]]":
    """Yield the log when it has grown and, with `partial`, when a model has generated more text."""
    pieces = PartialTextReader(invocation)
    logs = invocation.follow()
    log: Log | None = None
    next_log: asyncio.Task[Log] = asyncio.ensure_future(anext(logs))
    try:
        while True:
            growing = partial and log is not None and pieces.may_grow(log)
            done, _ = await asyncio.wait((next_log,), timeout=LOOK_S if growing else None)
            if done:
                try:
                    log = next_log.result()
                except StopAsyncIteration:
                    return
                next_log = asyncio.ensure_future(anext(logs))
            if growing and log is not None and not done:
                await pieces.read(log)
            if log is not None and (done or pieces.new):
                yield log, pieces
    finally:
        next_log.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await next_log


def new_events(log: Log, start: int, pieces: "PartialTextReader") -> Iterator[Event]:
    """Yield new pieces of text, and events from index `start` on, each after the last piece of its text."""
    yield from pieces.take()
    replies = pieces.replies(log)
    for number in pieces.lost(log):
        if number not in replies:
            yield from pieces.close(number)
    for event in log.state.events[start:]:
        match = next((number for number, content in replies.items() if content == event.content), None)
        if match is not None:
            del replies[match]
            yield from pieces.close(match, replied=True)
        yield event
    for number in replies:  # replies to agents that were stopped
        yield from pieces.close(number)


class PartialTextReader:
    """Reads the unfinished text of one invocation's model calls from heartbeats."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._texts = PartialTexts()
        self._runs: dict[int, AgentRun] = {}
        self._entries = 0
        self.new: list[Event] = []

    def may_grow(self, log: Log) -> bool:
        """Whether a model call with streamed text is in flight."""
        return bool(log.state.input and log.state.input.streaming and log.state.models_in_flight)

    async def read(self, log: Log) -> None:
        """Read the heartbeats, and add new text to `new`."""
        described = await self._invocation.handle.describe()
        for activity in described.raw_description.pending_activities:
            number = _parse_number(activity)
            # Calls that are not in flight in the log are skipped: their text comes with the recorded reply.
            if activity.activity_type.name == MODEL.name and number in log.state.models_in_flight:
                self._runs[number] = log.state.models_in_flight[number]
                text = await _read_heartbeat(activity, self._invocation.converter)
                self._add(self._texts.look(number, max(activity.attempt, 1), text))

    def take(self) -> list[Event]:
        """Return the new events, and clear them."""
        new, self.new = self.new, []
        return new

    def replies(self, log: Log) -> dict[int, Any]:
        """Return the contents of new replies by call number, for calls whose text was yielded before."""
        entries = log.entries[self._entries :] if self._texts.shown else ()
        self._entries = len(log.entries)
        replies = [entry.body for entry in entries if isinstance(entry.body, ModelReplied)]
        return {
            body.number: body.reply.content
            for body in replies
            if body.reply.content and body.number in self._texts.shown
        }

    def close(self, number: int, *, replied: bool = False) -> list[Event]:
        """Return the last pieces of a call."""
        self._add(self._texts.close(number, replied=replied))
        return self.take()

    def lost(self, log: Log) -> list[int]:
        """Return the numbers of calls that are no longer in flight and whose text was yielded before."""
        return [number for number in self._texts.shown if number not in log.state.models_in_flight]

    def _add(self, pieces: Iterator[Piece]) -> None:
        for piece in pieces:
            run = self._runs[piece.number]
            self.new.append(
                piece.event(
                    invocation_id=self._invocation.id, author=run.agent, branch=run.branch, timestamp=time.time()
                )
            )


async def stream_file(
    path: str | Path, *, start: int = 0, converter: DataConverter = DataConverter.default
) -> AsyncIterator[Event]:
    """Yield the events of a history in a file, like `Invocation.stream` for a closed invocation.

    Args:
        path: A file from `waystation history`, `temporal workflow show -o json` or the Web UI's download.
        start: Number of events to skip.
        converter: The client's data converter, for payloads that its codec has encoded.

    Raises:
        ForeignHistory: The history is damaged, or not that of an invocation.
    """
    histories = await decode_histories((await asyncio.to_thread(read_history_file, Path(path))).histories, converter)
    check_readable(histories, repr(str(path)))
    for event in build_log(histories).state.events[start:]:
        yield event


def _parse_number(activity: PendingActivityInfo) -> int:
    name = activity.activity_id.removeprefix(str(ModelReplyRef(0))[:-1])
    return int(name) if name.isdecimal() else 0


async def _read_heartbeat(activity: PendingActivityInfo, converter: DataConverter) -> PartialText | None:
    if not activity.heartbeat_details.payloads:
        return None
    try:
        (details,) = await converter.decode(activity.heartbeat_details.payloads)
        return PartialText.model_validate(details)
    except Exception:  # noqa: BLE001  # foreign content; codecs may raise anything
        return None
