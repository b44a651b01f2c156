"""Start invocations, follow them, and answer what waits. Wraps Temporal's client and hands it out."""

import asyncio
import functools
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.converter import DataConverter
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from waystation.client.approvals import ApprovalClient
from waystation.client.connect import connect
from waystation.client.conversations import ConversationClient
from waystation.client.credentials import CredentialKeeper
from waystation.client.forks import Forks
from waystation.client.large import reading
from waystation.client.pending import pending_calls
from waystation.client.proof import Proof, Seals, Token
from waystation.client.scopes import ScopeClient
from waystation.client.search_attributes import registered
from waystation.client.starting import begin
from waystation.client.streams import stream
from waystation.client.unconfirmed import overtaken, refusal, too_late, unconfirmed
from waystation.client.updates import when_ready
from waystation.core import errors, ids
from waystation.core.answer import Action, PendingCall, check_size
from waystation.core.budget import Budget
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.payload import JsonObject, digest, encode
from waystation.core.wire import (
    ANSWER_SIGNAL,
    ANSWER_UPDATE,
    TASK_QUEUE,
    InvocationResult,
)
from waystation.history import (
    SavedHistory,
    decode_histories,
    fetch_log_before,
    fetch_runs,
    fetch_saved_history,
    follow_log,
    log_of,
)
from waystation.storage import Blobs

CONFIRMATION_LIMIT = timedelta(seconds=15)
"""How long a worker may take to confirm an answer. After a crash it takes the sticky timeout, 1 s, and a replay; what a
worker had just taken and was lost with it, the server gives to another one after 10 s."""


class AgentClient(ScopeClient, ConversationClient, ApprovalClient):
    """Everything a program does with agents from outside."""

    def __init__(
        self,
        temporal: Client,
        *,
        task_queue: str = TASK_QUEUE,
        blobs: Blobs | None = None,
        identity: str | Path | Seals | None = None,
    ) -> None:
        """Take up Temporal's client.

        Args:
            temporal: Temporal's client.
            task_queue: What the workers poll.
            blobs: The store of the workers, from which histories that the server has deleted are read.
            identity: A file that says how tokens are sealed; by default the variable WAYSTATION_IDENTITY names it.
        """
        self.temporal = temporal
        """Temporal's own client."""
        self.task_queue = task_queue
        self.blobs = blobs or Blobs()
        self.proof = Proof(identity)
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
        identity: str | Path | Seals | None = None,
    ) -> "AgentClient":
        """Connect as `temporalio.envconfig` says; what is given here wins. `store`: see `waystation.storage.Blobs`.

        Raises:
            RuntimeError: No server answers there.
        """
        temporal = await connect(address=address, namespace=namespace, profile=profile, store=store)
        return cls(temporal, task_queue=task_queue, blobs=Blobs(store), identity=identity)

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
    ) -> "Invocation":
        """Start an invocation and return at once.

        Args:
            agent: Name of a root agent.
            message: Text, or a genai Content as JSON.
            id: Id of the invocation; starting one id twice gives the same invocation, with what was said first. By
                default a new one.
            state: Initial state.
            user_id: Whom the agent serves.
            session_id: The conversation it belongs to.
            app: The application; artifacts, memories and credentials of different ones are apart.
            budget: What it may use.
            metadata: Recorded with the input, not shown to the model.
            requester: Who triggers it, when that is not `user_id`; policies may keep that person from answering.
            streaming: Whether text can be read while a model still says it; see `Invocation.stream`.
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
        given = {"agent": agent, "message": message, **{key: value for key, value in optional.items() if value}}
        chosen = id or f"{agent}-{uuid.uuid4().hex[:12]}"
        try:
            return Invocation(self, await begin(self, chosen, given))
        except WorkflowAlreadyStartedError:
            return Invocation(self, self.temporal.get_workflow_handle(chosen), existed=True)

    async def searchable(self) -> bool:
        """Return whether the namespace has Waystation's search attributes."""
        if self._searchable is None:
            self._searchable = await registered(self.temporal, tell=False)
        return self._searchable

    @property
    def forks(self) -> Forks:
        """Invocations that go on from an event of another one."""
        return Forks(self)

    async def run(self, agent: str, message: str | JsonObject, **options: Any) -> InvocationResult:
        """Start an invocation and wait for its result; see `start` and `Invocation.result`."""
        return await (await self.start(agent, message, **options)).result()

    def invocation(self, id: str, *, run_id: str | None = None) -> "Invocation":
        """Return the invocation of that id, whether or not it exists."""
        return Invocation(self, self.temporal.get_workflow_handle(id, run_id=run_id))

    def stream(self, id: str, *, start: int = 0, partial: bool = False) -> AsyncIterator[Event]:
        """Yield the events of an invocation as they are recorded; see `Invocation.stream`."""
        return self.invocation(id).stream(start=start, partial=partial)

    async def authorize(self, auth_response_uri: str, *, store: CredentialKeeper) -> list[JsonObject]:
        """Finish a login at the address to which the provider sent the user; all calls that wait for it go on.

        Raises:
            AuthorizationFailed: The login is not known, or gave no token. The message has no secret.
        """
        kept = await store.authorize(auth_response_uri=auth_response_uri)
        return await self._approve_all(kept.calls)

    async def _approve_all(self, calls: Iterable[tuple[str, str]]) -> list[JsonObject]:
        """Approve what still waits of some calls, each an invocation's id and a call's; return the receipts."""
        receipts = []
        for id, call in calls:
            # One that was cancelled or answered meanwhile needs nothing any more.
            with suppress(errors.AnswerRefused, errors.AnswerUnconfirmed, RPCError):
                receipts.append(await self.invocation(id).approve(call))
        return receipts


class Invocation:
    """One invocation of an agent, as seen from outside."""

    def __init__(self, client: AgentClient, handle: WorkflowHandle[Any, Any], *, existed: bool = False) -> None:
        self.client = client
        """Through which it is seen."""
        self.handle = handle
        """Temporal's own handle."""
        self.existed = existed
        """Whether `start` found it, begun earlier under the same id."""

    @property
    def id(self) -> str:
        """Id of the invocation, which is that of its workflow."""
        return self.handle.id

    @property
    def converter(self) -> DataConverter:
        """How the client reads payloads."""
        return self.client.temporal.data_converter

    async def result(self) -> InvocationResult:
        """Wait for the end and return the result.

        Raises:
            WorkflowFailureError: It failed or was cancelled; the cause says how.
            StoreFailed: It is large, and not in the client's store.
        """
        with reading(f"the result of {self.id!r}"):
            return InvocationResult.model_validate(await self.handle.result())

    async def history(self) -> WorkflowHistory:
        """Return what Temporal recorded of the run that goes on, or was the last; see `histories` for all of them."""
        return await self.handle.fetch_history()

    async def log(self) -> Log:
        """Return the log as of now, rebuilt from history. No worker has to run."""
        latest = await decode_histories([await self.history()], self.converter)
        client = self.client
        return log_of(latest, await fetch_log_before(client.temporal, self.id, latest[0].events[0], client.blobs.get))

    async def histories(self) -> list[WorkflowHistory]:
        """Return what Temporal still has of all runs, oldest first."""
        return await fetch_runs(self.client.temporal, await self.history())

    async def saved(self) -> SavedHistory:
        """Return what `waystation history` writes: `histories`, and those of the agents that it called."""
        return await fetch_saved_history(self.client.temporal, await self.history())

    async def state(self) -> JsonObject:
        """Return the state as of now. No worker has to run."""
        return (await self.log()).state

    async def events(self, *, start: int = 0, follow: bool = True) -> AsyncIterator[Event]:
        """Yield the events from index `start` on: as `stream`, or, without `follow`, those recorded already."""
        if follow:
            async for event in stream(self, start=start):
                yield event
        else:
            for event in (await self.log()).events[start:]:
                yield event

    def stream(self, *, start: int = 0, partial: bool = False) -> AsyncIterator[Event]:
        """Yield events as they are recorded, until the invocation ends; afterwards all of them at once.

        Args:
            start: How many events to pass over; to resume, the `index` of the last one that was seen plus 1.
            partial: Whether to yield text that a model has not finished saying, too, as events that are `partial`;
                see `waystation.core.partial`. There is some only if the invocation was started with `streaming`.
        """
        return stream(self, start=start, partial=partial)

    async def follow(self) -> AsyncIterator[Log]:
        """Yield the log whenever history has grown, until the invocation ends.

        It is one log that grows; another one from there on when the invocation is reset.
        """
        async for log in follow_log(self.client.temporal, self.handle, self.client.blobs.get):
            yield log

    async def pending(self) -> list[PendingCall]:
        """Return what waits for a person. No worker has to run."""
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
        """Keep the credential that a call waits for, and approve the call; others that wait for the same go on, too.

        The credential goes from here into the store, which must be that of the workers, and never to Temporal.

        Args:
            function_call_id: Which call; needed when several wait.
            store: Such as `waystation.auth.EncryptedFileCredentialService`.
            auth_response_uri: The address to which the provider sent the user after the login.
            credential: Or else the credential, as an `AuthCredential` or as text.
            answer: As for `answer`.

        Raises:
            AuthorizationFailed: It is no login of this call, or gave no token. The message has no secret.
            AnswerRefused: The credential is kept, but the call does not wait for it any more.
        """
        call = (self.id, function_call_id or await self._only_pending())
        kept = await store.authorize(auth_response_uri=auth_response_uri, credential=credential, call=call)
        receipt = await self.approve(call[1], **answer)
        await self.client._approve_all(other for other in kept.calls if tuple(other) != call)
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
        """Answer a call that waits, and learn at once whether the answer counts.

        Args:
            action: What to do with it.
            function_call_id: Which one; needed when several wait.
            token: Proves who answers; encrypted before it is sent, as `identity` of the client says.
            signal: Send it without waiting for a worker to take it; then nothing is learnt.
            confirm_within: How long to wait for a worker to take it.
            fields: Further fields of the wire contract's answer, such as `comment`, `by`, `response`, `digest`.

        Raises:
            AnswerRefused: It does not count; the class says why.
            AnswerUnconfirmed: No worker took it in time. It may still be applied later.
            InvalidConfiguration: There is a token, but no key to encrypt it.
        """
        given = {
            "function_call_id": function_call_id or await self._only_pending(),
            "action": action,
            **fields,
        }
        answer = {key: value for key, value in given.items() if value is not None}
        if token is not None:
            approval_id = ids.approval(self.id, ids.requesting_call(given["function_call_id"]))
            namespace = self.client.temporal.namespace
            answer["token"] = self.client.proof.of(token, namespace=namespace, approval_id=approval_id, answer=answer)
        check_size(encode(answer))
        try:
            if signal:
                await self.handle.signal(ANSWER_SIGNAL, answer)
                return {"sent": True}
            # The server asks again for as long as no worker runs; its own time limit is one of each request.
            async with asyncio.timeout(confirm_within.total_seconds()):
                # The server answers a used update id with its first outcome, whatever is sent; so each id is new.
                update_id = f"answer-{digest([answer, uuid.uuid4().hex])[:16]}"
                update = functools.partial(self.handle.execute_update, ANSWER_UPDATE, answer, id=update_id)
                receipt: JsonObject = await when_ready(update)
        except WorkflowUpdateFailedError as error:
            raise (too_late(await self.log(), answer) if overtaken(error) else refusal(error)) from None
        except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError):
            raise unconfirmed(errors.AnswerUnconfirmed(self.id, given["function_call_id"])) from None
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            raise too_late(await self.log(), answer) from None
        return receipt

    async def cancel(self) -> None:
        """Ask the invocation to end; running tools are told."""
        await self.handle.cancel()

    async def _only_pending(self) -> str:
        waiting = [call.function_call_id for call in await self.pending()]
        if not waiting:
            # Whoever answers twice should hear that the first answer stands, not that nothing was ever asked.
            calls = reversed((await self.log()).calls.values())
            waiting = [call.id for call in calls if call.requested_at is not None or call.answer][:1]
        if not waiting:
            raise errors.UnknownCall(f"No call waits for an answer in {self.id!r}.")
        if len(waiting) > 1:
            raise errors.UnknownCall(f"Say which call is answered; waiting in {self.id!r}: {', '.join(waiting)}.")
        return waiting[0]
