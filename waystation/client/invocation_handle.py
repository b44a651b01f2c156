"""One invocation: start it, follow it, stream its events, answer its pending calls.

Events come from the server's long poll of the history, unfinished text of a model from the heartbeats of its activity.
So a stream adds nothing to the history and involves no worker; while an invocation waits for an approver it costs
nothing at all.
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

from waystation.client.search_attributes import AGENT, PENDING, start_attributes
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
    check_readable,
    decode_histories,
    fetch_log_before,
    fetch_runs,
    fetch_saved_history,
    follow_log,
    is_not_found,
    log_of,
    read_history_file,
)
from waystation.storage import INLINE_LIMIT, STORE_VARIABLE, UNREADABLE, Blobs

CONFIRMATION_LIMIT = timedelta(seconds=15)
"""How long a worker may take to confirm an answer. After a crash that takes the sticky timeout, 1 s, and a replay; a
task that was lost with a worker goes to another one after 10 s."""
_REFUSALS = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.RESOURCE_EXHAUSTED)
"""The second for what is over the 4 MB of a gRPC message."""
RESEND_PAUSE_S = 0.2
LOOK_S = 0.1
"""How often heartbeats are read while a model generates text; workers send no more of them."""


class ClientContext(Protocol):
    """What invocations, sessions and collections use of the client that made them: an `AgentClient`."""

    temporal: Client
    """Temporal's own client."""
    task_queue: str
    blobs: Blobs
    token_encryption: TokenEncryption

    async def searchable(self) -> bool:
        """Return whether the namespace has Waystation's search attributes."""


class StoredCredential(Protocol):
    """A credential that a store has accepted."""

    @property
    def calls(self) -> Sequence[tuple[str, str]]:
        """The calls that wait for it, each an invocation's id and a function call's."""


class CredentialKeeper(Protocol):
    """A store of users' credentials, such as `waystation.auth.CredentialStore`."""

    async def authorize(
        self,
        *,
        auth_response_uri: str | None = None,
        credential: Any = None,
        call: tuple[str, str] | None = None,
    ) -> StoredCredential:
        """Store a credential, or the result of a login."""


class Invocation:
    """One invocation of an agent, as seen from outside."""

    def __init__(self, client: ClientContext, handle: WorkflowHandle[Any, Any], *, existed: bool = False) -> None:
        self.client = client
        """The client that made it."""
        self.handle = handle
        """Temporal's own handle."""
        self.existed = existed
        """Whether `start` found it already started under the same id."""

    @classmethod
    def from_id(cls, client: ClientContext, id: str, *, run_id: str | None = None) -> "Invocation":
        """Return the invocation of that id, whether or not it exists."""
        return Invocation(client, client.temporal.get_workflow_handle(id, run_id=run_id))

    @property
    def id(self) -> str:
        """Id of the invocation, which is that of its workflow."""
        return self.handle.id

    @property
    def converter(self) -> DataConverter:
        """How the client reads payloads."""
        return self.client.temporal.data_converter

    async def started(self) -> None:
        """Return once it has started; of an invocation that is not a session's at once."""

    async def result(self) -> InvocationResult:
        """Wait for the end and return the result.

        Raises:
            WorkflowFailureError: It failed or was cancelled; the cause says how.
            StoreFailed: It is large, and not in the client's store.
        """
        await self.started()
        try:
            return InvocationResult.model_validate(await self.handle.result())
        except KeyError as error:  # how the SDK reads what its converter cannot
            if UNREADABLE["encoding"].decode() not in str(error):
                raise
            raise StoreFailed(
                "which large payloads are kept",
                f"the result of {self.id!r} is not there. The remedy is --store, or {STORE_VARIABLE}.",
            ) from None

    async def history(self) -> WorkflowHistory:
        """Return the history of the latest run; see `histories` for all runs."""
        await self.started()
        return await self.handle.fetch_history()

    async def log(self) -> Log:
        """Return the log as of now, rebuilt from history. No worker has to run."""
        latest = await decode_histories([await self.history()], self.converter)
        client = self.client
        return log_of(latest, await fetch_log_before(client.temporal, self.id, latest[0].events[0], client.blobs.get))

    async def histories(self) -> list[WorkflowHistory]:
        """Return the histories of all runs that the server still has, oldest first."""
        return await fetch_runs(self.client.temporal, await self.history())

    async def saved(self) -> SavedHistory:
        """Return what `waystation history` writes: `histories`, and those of the agents that it called."""
        return await fetch_saved_history(self.client.temporal, await self.history())

    async def state(self) -> JsonObject:
        """Return the state as of now. No worker has to run."""
        return (await self.log()).state.session.values

    async def events(self, *, start: int = 0, follow: bool = True) -> AsyncIterator[Event]:
        """Yield the events from index `start` on: as `stream`, or, without `follow`, those recorded already."""
        if follow:
            async for event in stream_events(self, start=start):
                yield event
        else:
            for event in (await self.log()).state.events[start:]:
                yield event

    def stream(self, *, start: int = 0, partial: bool = False) -> AsyncIterator[Event]:
        """Yield events as they are recorded, until the invocation ends; afterwards all of them at once.

        Args:
            start: How many events to pass over; to resume, the `index` of the last one that was seen plus 1.
            partial: Whether to yield unfinished text of a model, too, as events that are `partial`; see
                `waystation.core.partial`. Only invocations started with `streaming` have any.
        """
        return stream_events(self, start=start, partial=partial)

    async def follow(self) -> AsyncIterator[Log]:
        """Yield the log whenever history has grown, until the invocation ends.

        It is one log that grows; another one from there on when the invocation is reset.
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
        return pending_calls(await description.memo(), description.typed_search_attributes)

    async def approve(self, function_call_id: str | None = None, **answer: Any) -> JsonObject:
        """Approve a call; see `answer`."""
        return await self.answer("approve", function_call_id, **answer)

    async def reject(self, function_call_id: str | None = None, **answer: Any) -> JsonObject:
        """Reject a call; see `answer`."""
        return await self.answer("reject", function_call_id, **answer)

    async def respond(self, response: JsonObject, function_call_id: str | None = None, **answer: Any) -> JsonObject:
        """Give a long-running call its response; see `answer`."""
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
        """Store the credential that a call waits for, and approve it and all other calls that wait for the same one.

        The credential goes from here into the store, which must be that of the workers, and never to Temporal.

        Args:
            function_call_id: Which call; needed when several are pending.
            store: Such as `waystation.auth.EncryptedFileCredentialService`.
            auth_response_uri: The address to which the provider sent the user after the login.
            credential: Or else the credential, as an `AuthCredential` or as text.
            answer: As for `answer`.

        Raises:
            AuthorizationFailed: It is no login of this call, or gave no token. The message has no secret.
            AnswerRefused: The credential is stored, but the call is no longer pending.
        """
        call = (self.id, function_call_id or await self._only_pending())
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
        """Answer a pending call, and learn at once whether the answer counts.

        Args:
            action: What to do with it.
            function_call_id: Which call; needed when several are pending.
            token: Proves who answers; encrypted before it is sent, as `identity` of the client says.
            signal: Send it without waiting for a worker; whether it counts is then not reported.
            confirm_within: How long to wait for a worker.
            fields: Further fields of the wire contract's answer, such as `comment`, `by`, `response`, `digest`.

        Raises:
            AnswerRefused: It does not count; the class says why.
            AnswerUnconfirmed: No worker confirmed it in time. It may still be applied later.
            InvalidConfiguration: There is a token, but no key to encrypt it.
        """
        await self.started()
        call_id = function_call_id or await self._only_pending()
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
            if refusal := answer_refusal(error):
                raise refusal from None
        except RPCError as error:
            if not is_not_found(error):
                raise
        raise _late_answer_refusal(await self.log(), answer)

    async def cancel(self) -> None:
        """Request cancellation; running tools are notified."""
        await self.started()
        await self.handle.cancel()

    async def _only_pending(self) -> str:
        waiting = [call.function_call_id for call in await self.pending()]
        if not waiting:
            # A second answer is refused with the first one, not with the claim that no call was ever pending.
            calls = reversed((await self.log()).state.calls.values())
            waiting = [call.id for call in calls if call.requested_at is not None or call.answer][:1]
        if len(waiting) == 1:
            return waiting[0]
        problem = f"has several pending calls. Name one: {', '.join(waiting)}" if waiting else "has no pending call"
        raise errors.UnknownCall(f"{self.id!r} {problem}.")


async def approve_calls(client: ClientContext, calls: Iterable[tuple[str, str]]) -> list[JsonObject]:
    """Approve those of some calls that are still pending, each an invocation's id and a call's; return the receipts."""
    receipts = []
    for invocation_id, call_id in calls:
        # A call that was cancelled or answered in the meantime needs nothing.
        with suppress(errors.AnswerRefused, errors.AnswerUnconfirmed, RPCError):
            receipts.append(await Invocation.from_id(client, invocation_id).approve(call_id))
    return receipts


async def start_invocation(
    client: ClientContext, id: str, params: JsonObject, memo: JsonObject | None = None
) -> WorkflowHandle[Any, Any]:
    """Start an invocation with an input.

    Raises:
        WorkflowAlreadyStartedError: There is, or was, one of that id.
        InvalidInput: It is too large for the server, and this client keeps nothing beside the history.
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
            search_attributes=start_attributes(started) if await client.searchable() else None,
            memo=memo,
        )
    except RPCError as error:
        if error.status not in _REFUSALS or (size := len(encode(params))) <= INLINE_LIMIT:
            raise
        raise InvalidInput(
            f"The input is {size:,} bytes; the server takes {INLINE_LIMIT:,} of a client that keeps no large payloads "
            "beside the history. Make it with `AgentClient.connect(store=...)`, with the store of the workers."
        ) from None


async def confirm_update(
    send: Callable[[str], Awaitable[JsonObject]], *, name: str, within: timedelta, unconfirmed: Exception
) -> JsonObject:
    """Return the receipt of an update; `send` sends it under the id that it is given.

    A workflow whose last task failed, for instance because its worker was killed, is not ready: the server refuses the
    update and records nothing. It is sent again until time is up.

    Raises:
        Exception: `unconfirmed`, when no worker confirmed it in time.
        WorkflowUpdateFailedError: The workflow refused it.
        RPCError: The server does not take it.
    """
    # The server answers a used update id with its first outcome, whatever is sent; so each id is new.
    id = f"{name}-{uuid.uuid4().hex[:16]}"
    try:
        # The server asks again for as long as no worker runs; its own time limit is one of each request.
        async with asyncio.timeout(within.total_seconds()):
            while True:
                try:
                    return await send(id)
                except RPCError as error:
                    if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                        raise
                await asyncio.sleep(RESEND_PAUSE_S)
    except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError):
        task = asyncio.current_task()  # the SDK reports a cancellation of this task as it reports a timeout
        raise asyncio.CancelledError() if task and task.cancelling() else unconfirmed from None


def update_refusal(error: WorkflowUpdateFailedError, *kinds: type[errors.WaystationError]) -> Exception:
    """Return why a workflow refused an update, as one of some kinds of errors; `error` if it is none of them."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        kind = getattr(errors, cause.type or "", None)
        if isinstance(kind, type) and issubclass(kind, kinds):
            return kind(cause.message)
    return error


def answer_refusal(error: WorkflowUpdateFailedError) -> Exception | None:
    """Return why a workflow refused an answer; None when the invocation ended while the answer was verified.

    The server then says nothing about the answer.
    """
    refusal, cause = update_refusal(error, errors.AnswerRefused), error.cause
    if refusal is error and isinstance(cause, ApplicationError):
        return None if cause.type == "AcceptedUpdateCompletedWorkflow" else errors.AnswerRefused(cause.message)
    return refusal


def _late_answer_refusal(log: Log, answer: JsonObject) -> errors.AnswerRefused:
    """Return why an answer to an invocation that is over does not count."""
    parsed = parse_answer(encode(answer))
    try:
        decision.check(log, parsed, time.time())
    except errors.DigestMismatch as mismatch:
        return mismatch
    except errors.AnswerRefused:
        pass
    return closed_call_refusal(log, ids.requesting_call(parsed.function_call_id))


def closed_call_refusal(log: Log, call_id: str) -> errors.AnswerRefused:
    """Return the error for a call that is not pending."""
    call, place = log.state.calls.get(call_id), f"call {call_id!r} of {log.invocation_id!r}"
    if call is None or not call.ever_waits:
        return errors.UnknownCall(f"There never was a pending {place}.")
    if call.expired:
        return errors.Expired(f"The deadline of {place} has passed; it was not approved.")
    if call.answer:
        return decision.standing(call)
    ended = log.state.outcome.ended
    reason = f"the invocation is {ended.replace('_', ' ')}" if ended else "it was closed without an answer"
    return errors.UnknownCall(f"C{place[1:]} is not pending any more: {reason}.")


def pending_calls(memo: Mapping[str, Any], attributes: TypedSearchAttributes) -> list[PendingCall]:
    """Return the calls in a memo; where search attributes exist, only those that they still list."""
    calls = [PendingCall.model_validate(call) for call in memo.get(MEMO_PENDING) or ()]
    listed = attributes.get(PENDING) or ()
    return [call for call in calls if attributes.get(AGENT) is None or call.function_call_id in listed]


async def stream_events(invocation: Invocation, *, start: int = 0, partial: bool = False) -> AsyncGenerator[Event]:
    """Yield events from index `start` on; see `Invocation.stream`."""
    shown = start
    async with aclosing(stream_logs(invocation, partial=partial)) as coming:
        async for log, pieces in coming:
            for event in new_events(log, shown, pieces):
                yield event
            shown = max(shown, len(log.state.events))


async def stream_logs(invocation: Invocation, *, partial: bool) -> "AsyncGenerator[tuple[Log, PartialTextReader]]":
    """Yield the log when it has grown, and, with `partial`, when a model has generated more text."""
    pieces = PartialTextReader(invocation)
    logs = invocation.follow()
    log: Log | None = None
    coming: asyncio.Task[Log] = asyncio.ensure_future(anext(logs))
    try:
        while True:
            growing = partial and log is not None and pieces.may_grow(log)
            done, _ = await asyncio.wait((coming,), timeout=LOOK_S if growing else None)
            if done:
                try:
                    log = coming.result()
                except StopAsyncIteration:
                    return
                coming = asyncio.ensure_future(anext(logs))
            if growing and log is not None and not done:
                await pieces.look(log)
            if log is not None and (done or pieces.new):
                yield log, pieces
    finally:
        coming.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await coming


def new_events(log: Log, shown: int, pieces: "PartialTextReader") -> Iterator[Event]:
    """Yield new pieces of text, and events from index `shown` on, each after the last piece of its text."""
    yield from pieces.take()
    replies = pieces.replies(log)
    for number in pieces.lost(log):
        if number not in replies:
            yield from pieces.close(number)
    for event in log.state.events[shown:]:
        replied = next((n for n, content in replies.items() if content == event.content), None)
        if replied is not None:
            del replies[replied]
            yield from pieces.close(replied, replied=True)
        yield event
    for left in replies:  # of an agent that was stopped meanwhile
        yield from pieces.close(left)


class PartialTextReader:
    """Reads the unfinished text of one invocation's model calls from heartbeats."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._texts = PartialTexts()
        self._works: dict[int, AgentRun] = {}
        self._entries = 0
        self.new: list[Event] = []

    def may_grow(self, log: Log) -> bool:
        """Whether a model call is in flight that streams its text."""
        return bool(log.state.input and log.state.input.streaming and log.state.models_at_work)

    async def look(self, log: Log) -> None:
        """Add to `new` the text since the last look."""
        described = await self._invocation.handle.describe()
        for activity in described.raw_description.pending_activities:
            number = _number(activity)
            # What the log does not know yet, or any more, has its turn when it is recorded.
            if activity.activity_type.name == MODEL.name and number in log.state.models_at_work:
                self._works[number] = log.state.models_at_work[number]
                told = await _told(activity, self._invocation.converter)
                self._add(self._texts.look(number, max(activity.attempt, 1), told))

    def take(self) -> list[Event]:
        """Return the new events, once."""
        new, self.new = self.new, []
        return new

    def replies(self, log: Log) -> dict[int, Any]:
        """Return the contents of the replies that came since the last time, of calls of which text was shown."""
        fresh = log.entries[self._entries :] if self._texts.shown else ()
        self._entries = len(log.entries)
        replied = [entry.body for entry in fresh if isinstance(entry.body, ModelReplied)]
        return {b.number: b.reply.content for b in replied if b.reply.content and b.number in self._texts.shown}

    def close(self, number: int, *, replied: bool = False) -> list[Event]:
        """Return the last pieces of a call."""
        self._add(self._texts.close(number, replied=replied))
        return self.take()

    def lost(self, log: Log) -> list[int]:
        """Return the numbers of calls that work no more, and of which text was shown."""
        return [number for number in self._texts.shown if number not in log.state.models_at_work]

    def _add(self, pieces: Iterator[Piece]) -> None:
        for piece in pieces:
            work = self._works[piece.number]
            self.new.append(
                piece.event(
                    invocation_id=self._invocation.id, author=work.agent, branch=work.branch, timestamp=time.time()
                )
            )


async def stream_file(
    path: str | Path, *, start: int = 0, converter: DataConverter = DataConverter.default
) -> AsyncIterator[Event]:
    """Yield the events that a history in a file tells of, as a stream of a finished invocation would.

    Args:
        path: A file as `waystation history`, `temporal workflow show -o json` and the Web UI's download write it.
        start: How many events to pass over.
        converter: As the client's, for payloads that its codec has encoded.

    Raises:
        ForeignHistory: It is not one of ours, or it is damaged.
    """
    histories = await decode_histories((await asyncio.to_thread(read_history_file, Path(path))).histories, converter)
    check_readable(histories, repr(str(path)))
    for event in log_of(histories).state.events[start:]:
        yield event


def _number(activity: PendingActivityInfo) -> int:
    name = activity.activity_id.removeprefix(str(ModelReplyRef(0))[:-1])
    return int(name) if name.isdecimal() else 0


async def _told(activity: PendingActivityInfo, converter: DataConverter) -> PartialText | None:
    if not activity.heartbeat_details.payloads:
        return None
    try:
        (details,) = await converter.decode(activity.heartbeat_details.payloads)
        return PartialText.model_validate(details)
    except Exception:  # noqa: BLE001  # another program's, or for a codec, which raises anything
        return None
