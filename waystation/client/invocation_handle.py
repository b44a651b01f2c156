"""One invocation: start it, follow it, stream its events, answer its pending calls.

Events are read by long-polling the history, and a model's partial text from the heartbeats of its activity. A stream
therefore adds nothing to the history and does not require a worker. While an invocation is waiting for an approver, its
stream simply waits in the long poll.
"""

import asyncio
import time
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import structlog
from pydantic import ValidationError
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from waystation.client.agent_directory import AgentDirectory
from waystation.client.invocation_description import InvocationDescription, describe_invocation, parse_pending_calls
from waystation.client.search_attributes import is_unmapped, make_start_attributes, wait_until_accepted
from waystation.client.token_encryption import Token, TokenEncryption
from waystation.core import errors, ids, summary
from waystation.core.actions import Action
from waystation.core.approval import Answer, PendingCall, check_size, is_encrypted, parse_answer
from waystation.core.contract import (
    ANSWER_SIGNAL,
    ANSWER_UPDATE,
    MAX_MEMO_CALLS,
    MEMO_PENDING,
    TASK_TIMEOUT,
    WORKFLOW,
    Event,
    InvocationInput,
    InvocationResult,
    PartialText,
    PartialTexts,
    Piece,
)
from waystation.core.errors import InvalidInput, StoreFailed
from waystation.core.log import AgentRun, Log, ModelReplied, ModelReplyRef, decision
from waystation.core.payload import JsonObject, describe_faults, encode
from waystation.core.projection import MODEL
from waystation.core.scope_state import MAX_ID_BYTES
from waystation.core.session_log import search_attributes_of
from waystation.history import (
    SavedHistory,
    build_log,
    check_readable,
    check_start,
    decode_histories,
    describe_workflow,
    fetch_log_before,
    fetch_runs,
    fetch_saved_history,
    follow_log,
    is_not_found,
    read_history_file,
    read_memo,
)
from waystation.storage import (
    ENCRYPTION_VARIABLE,
    INLINE_LIMIT,
    STORE_VARIABLE,
    UNREADABLE,
    Blobs,
    Owner,
    encrypting,
    list_shortened,
)
from waystation.trace_context import find_traceparent

logger = structlog.get_logger("waystation.client")

CONFIRMATION_LIMIT = timedelta(seconds=15)
"""Time limit for a worker to confirm an answer. After a worker crash, confirmation takes the sticky timeout of 0.8 s
plus a replay; a task that was lost with its worker goes to another worker after 10 s."""
_REFUSALS = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.RESOURCE_EXHAUSTED)
"""Status codes that the server returns if an input is too large. The second is for messages over gRPC's 4 MB limit."""
_NO_KEY = (
    "The reason is encrypted with a key that this process does not have. "
    f"Set {ENCRYPTION_VARIABLE} to the key file of the workers."
)
"""Replaces the SDK's text for a message that it cannot decrypt."""
RESEND_PAUSE_S = 0.2
LOOK_S = 0.5
"""Interval for reading heartbeats until a model's first text, which says how often the worker sends text, if the
invocation has no interval of its own. This is the default of workers."""
PRIORITIES = range(1, 6)


class ClientContext(Protocol):
    """The part of an `AgentClient` that invocations, sessions, approvals and forks use."""

    temporal: Client
    """The wrapped Temporal client."""
    task_queue: str
    agents: AgentDirectory
    blobs: Blobs
    token_encryption: TokenEncryption

    async def open_artifacts(self) -> "ArtifactSaver":
        """Return the artifact service of the workers."""

    async def searchable(self, tenant: str | None = None, *, again: bool = False) -> bool | None:
        """Return whether the namespace has the search attributes that an invocation needs. None if that is unknown.

        The result is remembered for a while, unless `again` is set.
        """


class ArtifactSaver(Protocol):
    """The saving interface of an artifact service; see `waystation.artifacts.BaseArtifactService`."""

    async def save_artifact(
        self, *, app_name: str, user_id: str, filename: str, artifact: dict[str, Any], session_id: str
    ) -> int:
        """Save a new version of an artifact, and return its number."""


class StoredCredential(Protocol):
    """A credential that a store has accepted and saved."""

    @property
    def calls(self) -> Sequence[tuple[str, str]]:
        """The calls waiting for this credential, as pairs of invocation ID and function call ID."""


class CredentialKeeper(Protocol):
    """A store for users' credentials, such as `waystation.auth.CredentialStore`."""

    async def authorize(
        self,
        *,
        auth_response_uri: str | None = None,
        credential: Any = None,
        call: tuple[str, str] | None = None,
    ) -> StoredCredential:
        """Store a credential, or finish a login and store the resulting credential."""


class Invocation:
    """One invocation of an agent."""

    def __init__(self, client: ClientContext, handle: WorkflowHandle[Any, Any], *, existed: bool = False) -> None:
        self.client = client
        """The client that created this object."""
        self.converter: DataConverter = client.temporal.data_converter
        """The client's data converter."""
        self.handle = handle
        """Temporal's workflow handle."""
        self.existed = existed
        """Whether the invocation already existed when `start` was called."""

    @classmethod
    def from_id(cls, client: ClientContext, id: str, *, run_id: str | None = None) -> "Invocation":
        """Return a handle for the invocation with this ID, whether or not it exists."""
        return Invocation(client, client.temporal.get_workflow_handle(id, run_id=run_id))

    @property
    def id(self) -> str:
        """The ID of the invocation, which is also its workflow ID."""
        return self.handle.id

    async def started(self) -> None:
        """Wait until the invocation has started. Only a session's invocations can be queued; others start at once."""

    async def result(self) -> InvocationResult:
        """Wait until the invocation ends, and return its result.

        Raises:
            WorkflowFailureError: The invocation failed or was canceled; see the cause.
            StoreFailed: The result is large, and the client's store does not contain it.
            UnknownInvocation: The invocation does not exist, or no longer exists.
        """
        await self.started()
        try:
            result = InvocationResult.model_validate(await self.handle.result())
            return result.model_copy(update={"invocation_id": self.id})
        except KeyError as error:  # the SDK's error for a payload that the converter cannot decode
            if UNREADABLE["encoding"].decode() not in str(error):
                raise
            raise StoreFailed(
                "this client",
                f"it does not have the result of {self.id!r}. Use the workers' store (--store, {STORE_VARIABLE}).",
            ) from None
        except RPCError as error:
            raise _translate_not_found(error, self.id) from None

    async def history(self) -> WorkflowHistory:
        """Return the history of the latest run; see `histories` for all runs."""
        await self.started()
        return await self.handle.fetch_history()

    async def log(self, history: WorkflowHistory | None = None) -> Log:
        """Rebuild the log from a history of the latest run, by default the current one, and return it.

        This does not require a running worker.
        """
        latest = await decode_histories([history or await self.history()], self.converter)
        return build_log(
            latest,
            await fetch_log_before(self.client.temporal, self.id, latest[0].events[0], self.client.blobs.get),
        )

    async def histories(self) -> list[WorkflowHistory]:
        """Return the histories of all runs that the server still has, oldest first."""
        return await fetch_runs(self.client.temporal, await self.history())

    async def saved(self) -> SavedHistory:
        """Return what `waystation history` saves: the histories of the invocation and of the agents that it called."""
        return await fetch_saved_history(self.client.temporal, await self.history())

    async def state(self) -> JsonObject:
        """Return the current session state. This does not require a running worker."""
        return (await self.log()).state.session.values

    def events(self, *, start: int = 0, follow: bool = True) -> "EventStream":
        """Return the events from index `start` on. Without `follow`, stop after the events recorded so far."""

        async def read() -> AsyncGenerator[Event]:
            for event in (await self.log()).state.events[start:]:
                yield event

        return EventStream(stream_events(self, start=start) if follow else read())

    def stream(self, *, start: int = 0, partial: bool = False) -> AsyncIterator[Event]:
        """Yield past events, then new ones as they are recorded, until the invocation ends.

        Args:
            start: Number of events to skip. To resume, pass the `index` of the last event plus 1.
            partial: Also yield a model's unfinished text, as events with `partial` set; see `waystation.core.partial`.
                Only invocations started with `streaming` have partial text.
        """
        return stream_events(self, start=start, partial=partial)

    async def describe(self) -> InvocationDescription:
        """Return the owner, the agent and the status of the invocation. This does not require a running worker.

        Raises:
            UnknownInvocation: The invocation does not exist, or no longer exists.
            ForeignHistory: The workflow with this ID is not an invocation, or its input is not valid.
            StoreFailed: The input is large or encrypted, and this client does not have the store or the key.
        """
        await self.started()
        return await describe_invocation(self.client.temporal, self.handle)

    async def follow(self) -> AsyncIterator[Log]:
        """Yield the log whenever the history grows, until the invocation ends.

        The log is the same object each time, unless the invocation has been reset.

        Raises:
            UnknownInvocation: The invocation does not exist, or no longer exists.
        """
        await self.started()
        try:
            async for log in follow_log(self.client.temporal, self.handle, self.client.blobs.get):
                yield log
        except RPCError as error:
            raise _translate_not_found(error, self.id) from None

    async def pending(self) -> list[PendingCall]:
        """Return the pending calls, without those of called agents. This does not require a running worker.

        Raises:
            KeyMissing: The calls are encrypted with a key that this process does not have.
        """
        await self.started()
        description = await self.handle.describe()
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return []
        return await read_pending_calls(self.client, description, required=MEMO_PENDING)

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
        """Store the credential that a call needs, approve all calls waiting for it, and return this call's receipt.

        The credential goes directly into the store and is never sent to Temporal.

        Args:
            function_call_id: ID of the function call. Required if several calls are pending.
            store: The workers' store, such as `waystation.auth.EncryptedFileCredentialService`.
            auth_response_uri: The URI that the provider redirected the user to after the login.
            credential: The credential itself, as an `AuthCredential` or a string. Pass either this or the URI.
            answer: Passed to `answer()`.

        Raises:
            AuthorizationFailed: The login does not belong to this call or did not produce a token. The message contains
                no secrets.
            AnswerRefused: The credential was stored, but the approval was refused, for example because the call is no
                longer pending.
            AnswerUnconfirmed: The credential was stored, but no worker confirmed the approval in time.
        """
        call = (self.id, function_call_id or await _find_only_pending(self))
        stored = await store.authorize(auth_response_uri=auth_response_uri, credential=credential, call=call)
        receipt = await self.approve(call[1], **await _name_login(self, call[1]), **answer)
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
        """Answer a pending call, and return the receipt once a worker confirms that the answer was accepted.

        Args:
            action: A name in the table `waystation.core.actions.ACTIONS`, such as `approve`.
            function_call_id: ID of the function call. Required if several calls are pending.
            token: Proves the approver's identity. Encrypted with the client's `identity` before it is sent.
            signal: Send the answer as a signal, and return `{"sent": True}` without waiting for a worker. The answer is
                in time if the server receives it before the deadline. A refusal is not reported.
            confirm_within: Time limit for a worker to confirm the answer.
            fields: Other answer fields from the wire contract, such as `comment`, `by`, `response` or `digest`. When
                this client encrypts the token, `digest` and `run` default to the call's current values.

        Raises:
            AnswerRefused: The answer was not accepted; the subclass gives the reason.
            AnswerUnconfirmed: No worker confirmed the answer in time. It may still be accepted later. With an
                `answer_id`, it is safe to send the same answer again.
            InvalidConfiguration: No key is configured for encrypting the token.
        """
        await self.started()
        if action == "start_again" and (maker_id := self.id.rpartition("/")[0]):  # others are refused by a worker
            maker = await describe_workflow(self.client.temporal, maker_id)
            if maker is None or maker.status is not WorkflowExecutionStatus.RUNNING:
                raise errors.InvalidAnswer(
                    "The invocation that made the call has ended, so the call cannot start again. If it did not run, "
                    "answer with `not_run`."
                )
        call_id = function_call_id or await _find_only_pending(self)
        if token is not None and not (isinstance(token, str) and is_encrypted(token)):
            fields = await _name_call(self, call_id, fields)
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
        return _receive_late_answer(await self.log(), parse_answer(encode(answer)))

    async def cancel(self) -> None:
        """Request cancellation of the invocation. Running tools are notified."""
        await self.started()
        await self.handle.cancel()


def _translate_not_found(error: RPCError, invocation_id: str) -> Exception:
    return errors.UnknownInvocation(invocation_id) if is_not_found(error) else error


async def _find_only_pending(invocation: Invocation) -> str:
    waiting = [call.function_call_id for call in await invocation.pending()]
    if not waiting:
        # Fall back to the latest call that was pending, so that a second answer is refused as "already answered".
        calls = reversed((await invocation.log()).state.calls.values())
        waiting = [call.id for call in calls if call.requested_at is not None or call.answer][:1]
    if len(waiting) == 1:
        return waiting[0]
    problem = f"has several pending calls. Choose one: {', '.join(waiting)}" if waiting else "has no pending call"
    raise errors.UnknownCall(f"{invocation.id!r} {problem}.")


async def _name_call(invocation: Invocation, call_id: str, fields: JsonObject) -> JsonObject:
    """Return an answer's fields with the call's digest and the invocation's first run, unless they contain both."""
    if fields.get("digest") and fields.get("run"):
        return fields
    id = ids.requesting_call(call_id)
    call = next((call for call in await invocation.pending() if call.function_call_id == id and call.run), None)
    if call:
        shown = {"digest": call.digest, "run": call.run}
    else:  # no longer pending, or published by an earlier version
        state = (await invocation.log()).state
        shown = {"digest": state.calls[id].digest if id in state.calls else None, "run": state.run}
    return shown | {key: value for key, value in fields.items() if value is not None}


async def approve_calls(client: ClientContext, calls: Iterable[tuple[str, str]]) -> list[JsonObject]:
    """Approve calls, given as pairs of invocation ID and call ID, and return the receipts of confirmed approvals."""
    receipts = []
    for invocation_id, call_id in calls:
        # Skip calls that were canceled or answered in the meantime, and approvals that no worker confirms.
        with suppress(errors.AnswerRefused, errors.AnswerUnconfirmed, RPCError):
            invocation = Invocation.from_id(client, invocation_id)
            receipts.append(await invocation.approve(call_id, **await _name_login(invocation, call_id)))
    return receipts


async def _name_login(invocation: Invocation, call_id: str) -> JsonObject:
    """Return the field that makes an approval after a login count only for the call's request for a credential.

    Raises:
        AlreadyAnswered: The call waits for something else by now.
    """
    call = next((call for call in await invocation.pending() if call.function_call_id == call_id), None)
    if call and call.kind != "credential":
        raise errors.AlreadyAnswered(
            f"Call {call.approval_id!r} no longer waits for a credential, but for the answer to a {call.kind} request."
        )
    return {"question": call.question} if call else {}


async def check_owner(client: ClientContext, id: str, app_key: str, user_id: str) -> None:
    """Check that a workflow with this ID may start for a user. If the server does not tell, the worker decides.

    Raises:
        UserForgotten: The data of the user is being deleted.
        InvalidInput: The workflow would be encrypted with the key of another owner, which its ID names.
    """
    with suppress(RPCError):
        await check_start(client.temporal, id, Owner(app_key, user_id))


async def start_invocation(
    client: ClientContext,
    id: str,
    params: JsonObject,
    memo: JsonObject | None = None,
    *,
    token: Token | None = None,
    priority: int | None = None,
) -> WorkflowHandle[Any, Any]:
    """Start an invocation from an invocation input in JSON form.

    Raises:
        WorkflowAlreadyStartedError: An invocation with this ID exists or used to exist.
        InvalidInput: The ID or a field is not valid, or the input is too large for the server, and this client has no
            store for large payloads.
        UserForgotten: The data of the user is being deleted.
        InvalidConfiguration: No key is configured for encrypting the token.
    """
    if "\0" in id:  # PostgreSQL refuses it, and the SDK would repeat the request for seconds
        raise InvalidInput(f"The ID {id!r} contains a null character. Remove it.")
    try:
        started = InvocationInput.model_validate(params)
    except ValidationError as error:
        raise InvalidInput(f"The invocation's input is not valid: {describe_faults(error)}.") from None
    task_priority = make_priority(started.app_key, started.user_id, priority)
    if traceparent := started.traceparent or find_traceparent():
        params = params | {"traceparent": traceparent}
    if token is not None:
        place = {"namespace": client.temporal.namespace, "approval_id": id}
        params = params | {"token": client.token_encryption.encrypt(token, **place, answer=started.request())}

    async def start(searchable: bool | None) -> WorkflowHandle[Any, Any]:
        return await client.temporal.start_workflow(
            WORKFLOW,
            params,
            id=id,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            task_queue=client.task_queue,
            task_timeout=TASK_TIMEOUT,
            static_summary=summary.message(started.message),
            search_attributes=make_start_attributes(started) if searchable else None,
            memo=memo,
            priority=task_priority,
        )

    await check_owner(client, id, started.app_key, started.user_id)
    searchable = await client.searchable(started.tenant)
    try:
        return await start(searchable)
    except RPCError as error:
        is_invalid = error.status is RPCStatusCode.INVALID_ARGUMENT
        if searchable and is_invalid and not await client.searchable(started.tenant, again=True):
            return await start(False)
        if is_unmapped(error):
            await wait_until_accepted(client.temporal, search_attributes_of(started))
            return await start(True)
        if is_invalid and (length := len(id.encode())) > MAX_ID_BYTES:
            raise InvalidInput(
                f"The ID {id[:40]!r}… has {length:,} bytes; the server accepts {MAX_ID_BYTES:,}. Use shorter names."
            ) from None
        if error.status not in _REFUSALS or (size := len(encode(params))) <= INLINE_LIMIT:
            raise
        raise InvalidInput(
            f"The input has {size:,} bytes. Without a store for large payloads, the server's limit is "
            f"{INLINE_LIMIT:,}. Connect with the workers' store: `AgentClient.connect(store=...)`."
        ) from None


def make_priority(app_key: str, user_id: str, priority: int | None = None) -> Priority:
    """Return the priority of a workflow's tasks, which its activities and child workflows inherit.

    Raises:
        InvalidInput: `priority` is not one of the server's levels.
    """
    if priority is not None and priority not in PRIORITIES:
        raise InvalidInput(f"The priority {priority!r} is not valid. Use 1 (first) to 5 (last).")
    return Priority(priority_key=priority, fairness_key=ids.fairness_key(app_key, user_id))


async def confirm_update(
    send: Callable[[str], Awaitable[JsonObject]], *, name: str, within: timedelta, unconfirmed: Exception
) -> JsonObject:
    """Send an update with `send`, which takes the update ID, and return its receipt.

    If the last workflow task failed, for example because its worker was killed, the server refuses updates without
    recording them. In that case, the update is sent again until the time limit is reached.

    Raises:
        Exception: The exception `unconfirmed`, if no worker confirmed the update in time.
        WorkflowUpdateFailedError: The workflow refused the update.
        RPCError: The server refused the update.
    """
    # Use a new ID for each update: for a known ID, the server returns the earlier outcome and ignores the content.
    id = f"{name}-{uuid.uuid4().hex[:16]}"
    try:
        # While no worker is running, the SDK repeats the request. Its own timeout applies only to each single request.
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
    """Convert a refused update's error to one of `kinds`, or return `error` unchanged if it is none of them."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        kind = getattr(errors, cause.type or "", None)
        if isinstance(kind, type) and issubclass(kind, kinds):
            return kind(_NO_KEY if cause.message == "Encoded failure" else cause.message)
    return error


def translate_answer_error(error: WorkflowUpdateFailedError) -> Exception | None:
    """Return the workflow's refusal of an answer, or None if the invocation ended while the answer was being verified.

    If the invocation ended, the server's error contains no information about the answer.
    """
    refusal, cause = translate_update_error(error, errors.AnswerRefused), error.cause
    if refusal is error and isinstance(cause, ApplicationError):
        return None if cause.type == "AcceptedUpdateCompletedWorkflow" else errors.AnswerRefused(cause.message)
    return refusal


def _receive_late_answer(log: Log, answer: Answer) -> JsonObject:
    """Return the first receipt of an answer that was sent again after the invocation had ended.

    Raises:
        AnswerRefused: The answer has not counted before.
    """
    call_id = ids.requesting_call(answer.function_call_id)
    call = log.state.calls.get(call_id)
    if call and answer.answer_id in call.receipts:
        content, subject, receipt = call.receipts[answer.answer_id]
        if content == answer.content_digest and (subject is None) is (answer.token is None):
            return receipt
    try:
        decision.check_answer(log, answer, time.time())
    except errors.DigestMismatch:
        raise
    except errors.AnswerRefused:
        pass
    raise explain_closed_call(log, call_id)


def explain_closed_call(log: Log, call_id: str) -> errors.AnswerRefused:
    """Return the error that explains why a call is not pending."""
    call, place = log.state.calls.get(call_id), f"call {call_id!r} of {log.invocation_id!r}"
    if call is None or not call.ever_waits:
        return errors.UnknownCall(f"C{place[1:]} was never pending.")
    if call.expired:
        return errors.Expired(f"The deadline of {place} has passed; the call was not approved.")
    if call.answer:
        return decision.already_answered_error(call)
    ended = log.state.outcome.ended
    reason = f"the invocation is {ended.replace('_', ' ')}" if ended else "it was closed without an answer"
    return errors.UnknownCall(f"C{place[1:]} is no longer pending: {reason}.")


async def read_pending_calls(
    client: ClientContext, execution: WorkflowExecution, *, required: str = ""
) -> list[PendingCall]:
    """Return all pending calls of an open invocation. If its memo has no room for all, read them from its history.

    See `read_memo` for `required`.
    """
    calls = parse_pending_calls(execution, await read_memo(execution, required=required))
    log = await read_full_log(client, execution) if len(calls) >= MAX_MEMO_CALLS else None
    return calls if log is None else [] if log.state.outcome.ended else log.state.pending()


def explain_unread(client: ClientContext, call: PendingCall, recorded: Iterable[PendingCall]) -> StoreFailed | None:
    """Return why this client lacks the arguments of a call that it has read from a history, or None if it has them all.

    Args:
        client: The client. It may have read short forms of payloads that are missing from its store.
        call: The call, from the history.
        recorded: The calls from the memo, whose digests were computed from their complete arguments.
    """
    is_same = any((other.approval_id, other.digest) == (call.approval_id, call.digest) for other in recorded)
    if is_same or not list_shortened(client.temporal.data_converter):
        return None
    problem = f"it does not have the arguments of {call.approval_id!r}. Use the store of the workers"
    return StoreFailed(client.blobs.files.place, f"{problem} (--store, {STORE_VARIABLE}).")


async def read_full_log(client: ClientContext, execution: WorkflowExecution) -> Log | None:
    """Return the log of an invocation with more calls than its memo has, or None if its history cannot be read.

    One unreadable history must not prevent others from being listed, so what is missing is logged.
    """
    try:
        return await Invocation.from_id(client, execution.id, run_id=execution.run_id).log()
    except (StoreFailed, errors.ForeignHistory, RPCError) as error:
        logger.warning("calls.left_out", invocation_id=execution.id, listed=MAX_MEMO_CALLS, problem=str(error))
        return None


class EventStream(AsyncIterator[Event]):
    """Events: `async for` yields them one after another, and `await` returns them as a list."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events

    async def __anext__(self) -> Event:
        return await anext(self._events)

    def __await__(self) -> Generator[Any, None, list[Event]]:
        return self._collect().__await__()

    async def _collect(self) -> list[Event]:
        return [event async for event in self._events]


async def stream_events(invocation: Invocation, *, start: int = 0, partial: bool = False) -> AsyncGenerator[Event]:
    """Yield events from index `start` on; see `Invocation.stream`."""
    async with aclosing(stream_logs(invocation, partial=partial)) as updates:
        async for log, pieces in updates:
            events = new_events(log, start, pieces)
            start = max(start, len(log.state.events))
            for event in events:  # the log may grow while the caller handles an event
                yield event


async def stream_logs(invocation: Invocation, *, partial: bool) -> "AsyncGenerator[tuple[Log, PartialTextReader]]":
    """Yield the log whenever it grows and, with `partial`, whenever a model has generated more text."""
    pieces = PartialTextReader(invocation)
    logs = invocation.follow()
    log: Log | None = None
    next_log: asyncio.Task[Log] = asyncio.ensure_future(anext(logs))
    try:
        while True:
            growing = log if partial and log is not None and pieces.may_grow(log) else None
            done, _ = await asyncio.wait((next_log,), timeout=pieces.interval_s(growing) if growing else None)
            if done:
                try:
                    log = next_log.result()
                except StopAsyncIteration:
                    return
                next_log = asyncio.ensure_future(anext(logs))
            if growing and not done:
                await pieces.read(growing)
            if log is not None and (done or pieces.new):
                yield log, pieces
    finally:
        next_log.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await next_log


def new_events(log: Log, start: int, pieces: "PartialTextReader") -> list[Event]:
    """Return new pieces of text and the events from index `start` on. Each event follows the last piece of its text."""
    return list(_new_events(log, start, pieces))


def _new_events(log: Log, start: int, pieces: "PartialTextReader") -> Iterator[Event]:
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
    for number in replies:  # no event has these replies, because their agents were stopped
        yield from pieces.close(number)


class PartialTextReader:
    """Reads the unfinished text of an invocation's model calls from heartbeats."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._texts = PartialTexts()
        self._runs: dict[int, AgentRun] = {}
        self._entries = 0
        self._interval_s: float | None = None
        self.new: list[Event] = []

    def may_grow(self, log: Log) -> bool:
        """Return whether a model call that streams its text is in flight."""
        return bool(log.state.input and log.state.input.streaming and log.state.models_in_flight)

    def interval_s(self, log: Log) -> float:
        """Return how often the worker sends text, as far as known."""
        return self._interval_s or (log.state.input and log.state.input.text_interval_s) or LOOK_S

    async def read(self, log: Log) -> None:
        """Read the latest heartbeats, and add new text to `new`."""
        described = await self._invocation.handle.describe()
        for activity in described.raw_description.pending_activities:
            number = _parse_number(activity)
            # Skip calls that are not in flight according to the log: their text comes with the recorded reply.
            if activity.activity_type.name == MODEL.name and number in log.state.models_in_flight:
                self._runs[number] = log.state.models_in_flight[number]
                text = await _read_heartbeat(activity, self._invocation.converter)
                self._interval_s = (text and text.interval_s) or self._interval_s
                self._add(self._texts.look(number, max(activity.attempt, 1), text))

    def take(self) -> list[Event]:
        """Return the new events and clear the list."""
        new, self.new = self.new, []
        return new

    def replies(self, log: Log) -> dict[int, Any]:
        """Return new replies by model call number, only for calls with partial text that was already yielded."""
        entries = log.entries[self._entries :] if self._texts.shown else ()
        self._entries = len(log.entries)
        replies = [entry.body for entry in entries if isinstance(entry.body, ModelReplied)]
        return {
            body.number: body.reply.content
            for body in replies
            if body.reply.content and body.number in self._texts.shown
        }

    def close(self, number: int, *, replied: bool = False) -> list[Event]:
        """Finish a model call, and return the last pieces of its text."""
        self._add(self._texts.close(number, replied=replied))
        return self.take()

    def lost(self, log: Log) -> list[int]:
        """Return the numbers of model calls that are no longer in flight but have text that was already yielded."""
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
    path: str | Path, *, start: int = 0, converter: DataConverter | None = None
) -> AsyncIterator[Event]:
    """Yield the events from a history file, like `Invocation.stream` does for a closed invocation.

    Args:
        path: A file written by `waystation history` or `temporal workflow show -o json`, or downloaded from the Web UI.
        start: Number of events to skip.
        converter: The client's data converter, which decodes payloads that its codec has encoded.

    Raises:
        ForeignHistory: The history is damaged or does not belong to an invocation.
    """
    saved = await asyncio.to_thread(read_history_file, Path(path))
    histories = await decode_histories(saved.histories, converter or encrypting())
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
