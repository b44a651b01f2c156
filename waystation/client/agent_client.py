"""The client's entry point, which wraps Temporal's client and starts and finds invocations and sessions."""

import asyncio
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleHandle,
    SchedulePolicy,
    ScheduleSpec,
)
from temporalio.common import TypedSearchAttributes
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from waystation.client.agent_directory import AgentDirectory
from waystation.client.approvals import Approvals, Asked
from waystation.client.connection import connect
from waystation.client.held_invocations import HeldInvocations
from waystation.client.invocation_forks import Forks
from waystation.client.invocation_handle import (
    ArtifactSaver,
    CredentialKeeper,
    Invocation,
    approve_calls,
    check_owner,
    make_priority,
    start_invocation,
)
from waystation.client.invocation_list import Invocations
from waystation.client.schedules import Schedules
from waystation.client.search_attributes import REMEDY, find_missing, make_start_attributes, suffices
from waystation.client.session_handle import Session
from waystation.client.session_management import (
    GRACE,
    ArtifactKeeper,
    DeletedSession,
    MemoryKeeper,
    ScopedState,
    Sessions,
)
from waystation.client.token_encryption import Token, TokenEncrypter, TokenEncryption
from waystation.client.user_deletion import DeletedUser, UsageStore, UserDeletion, UserStore
from waystation.core import ids, summary
from waystation.core.approval import CLIENT_IDENTITY_ENV, PendingCall, TokenSigner
from waystation.core.budget import Budget
from waystation.core.contract import (
    DEFAULT_APP,
    DEFAULT_USER,
    TASK_QUEUE,
    TASK_TIMEOUT,
    WORKFLOW,
    Event,
    InvocationInput,
    InvocationResult,
    streaming_fields,
)
from waystation.core.errors import InvalidConfiguration, InvalidInput
from waystation.core.payload import JsonObject, decode, describe_faults, to_plain_json
from waystation.history import read_owner
from waystation.project_file import HERE, PROJECT_FILE, find_setting, load_project
from waystation.storage import Blobs, Owner, find_user_keys_of

__all__ = ["AgentClient", "Invocation"]

log = structlog.get_logger("waystation.client")

COMPLETE_S, INCOMPLETE_S = 60.0, 5.0
"""How long a client remembers that the namespace has all search attributes, and that some are missing or unknown."""

_ANSWERS = (
    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
)


class AgentClient:
    """A client that starts invocations and sessions and answers pending calls."""

    def __init__(
        self,
        temporal: Client,
        *,
        task_queue: str = TASK_QUEUE,
        blobs: Blobs | None = None,
        identity: str | Path | TokenEncrypter | None = None,
        artifacts: str | Path | ArtifactSaver | None = None,
    ) -> None:
        """Wrap a connected Temporal client.

        Args:
            temporal: The Temporal client.
            task_queue: The task queue that the workers poll.
            blobs: The workers' store, which is used to read histories that the server has deleted.
            identity: The file that configures token encryption, or an encrypter. Defaults to the file named by the
                environment variable WAYSTATION_CLIENT_IDENTITY.
            artifacts: The workers' artifact service, or the folder or URL of their artifacts, to which sessions save
                files.
        """
        self.temporal = temporal
        """The wrapped Temporal client."""
        self.task_queue = task_queue
        self.blobs = blobs or Blobs()
        self.token_encryption = TokenEncryption(identity)
        self._artifacts = artifacts
        self.approvals = Approvals(self)
        """Pending calls in the whole namespace."""
        self.invocations = Invocations(temporal)
        self.sessions = Sessions(temporal)
        self._state = ScopedState(temporal)
        self.schedules = Schedules(temporal)
        """Schedules that start invocations."""
        self.forks = Forks(self)
        """Forks: invocations that continue from an event of another invocation."""
        self.held = HeldInvocations(self)
        """Invocations that no worker can continue at the moment."""
        self.agents = AgentDirectory(temporal)
        """The agents that workers have announced."""
        self._missing: list[str] | None = None
        """The search attributes that were missing at the last check, or None if the server did not tell."""
        self._check_at = 0.0

    @classmethod
    async def connect(
        cls,
        *,
        address: str | None = None,
        namespace: str | None = None,
        profile: str | None = None,
        task_queue: str | None = None,
        store: str | Path | None = None,
        identity: str | Path | TokenEncrypter | None = None,
        artifacts: str | Path | ArtifactSaver | None = None,
        project: str | Path | None = HERE,
    ) -> "AgentClient":
        """Connect with the settings from the environment, and from the project file `waystation.toml`.

        Arguments override variables, which override the file. `project` is a file, or a folder: the file is searched
        there and in the folders above it. None reads no file.

        `store` is the workers' store for large payloads; see `waystation.storage.Blobs`. It is not compared with the
        store that invocations recorded. If it lacks a payload, the client logs `payload.missing`. `artifacts` is the
        workers' store for artifacts.

        Raises:
            RuntimeError: No server responds at the address.
            InvalidConfiguration: The address, a setting in the environment or the profile, or the project file is
                invalid.
        """
        settings = load_project(project)
        try:
            temporal = await connect(
                address=address, namespace=namespace, profile=profile, store=store, project=settings
            )
        except InvalidConfiguration as error:
            origins = settings.explain(str(error)) if settings else ""
            raise InvalidConfiguration(error.file, error.key, error.problem + origins) from None
        return cls(
            temporal,
            task_queue=task_queue or (settings and settings.get("server.task_queue")) or TASK_QUEUE,
            blobs=Blobs(store, project=settings),
            identity=identity or find_setting(CLIENT_IDENTITY_ENV, settings),
            artifacts=artifacts or (settings.get("stores.artifacts") if settings else None),
        )

    async def open_artifacts(self) -> ArtifactSaver:
        """Return the artifact service of the workers.

        Raises:
            InvalidConfiguration: The client was not given any.
            StoreFailed: The URL is not supported, or required settings are missing.
        """
        if self._artifacts is None:
            problem = "is not set. Set it to the `--artifacts` of the workers, or pass `artifacts=` to the client."
            raise InvalidConfiguration(PROJECT_FILE, "stores.artifacts", problem)
        if isinstance(self._artifacts, str | Path):
            self._artifacts = await asyncio.to_thread(_open_artifacts, self._artifacts)
        return self._artifacts

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
        token: Token | None = None,
        streaming: bool | timedelta = False,
        tenant: str | None = None,
        priority: int | None = None,
    ) -> Invocation:
        """Start an invocation and return immediately.

        Args:
            agent: Name of the root agent.
            message: Text, or a genai `Content` as JSON.
            id: Invocation ID, generated by default. Starting again with the same ID returns the existing invocation,
                which keeps its original message.
            state: Initial state.
            user_id: The user that the agent serves.
            session_id: The conversation that the invocation belongs to.
            app: The application. Each has its own artifacts, memories and credentials.
            budget: Limits on tokens, cost and calls.
            metadata: Recorded with the input, but not sent to the model.
            requester: The person who triggers the invocation, if different from `user_id`. Approval policies can
                prevent this person from answering.
            token: Proves the identity of the person who triggers the invocation. Approval policies that exclude the
                requester need it. Encrypted with the client's `identity` before it is sent.
            streaming: Make the model's text available while it is being generated; see `Invocation.stream`. A duration
                is the minimum interval between pieces of text, instead of the workers' own. Each piece is a billable
                action.
            tenant: The tenant that the invocation works for. Tenants share no sessions, state, artifacts, memories or
                credentials, even if their users and apps have the same names.
            priority: From 1 to 5. Waiting tasks of invocations with a lower number run first. Defaults to 3.

        Raises:
            InvalidConfiguration: No key is configured for encrypting the token.
            InvalidInput: A field is not valid, or the ID is that of another workflow, or of an invocation that belongs
                to another user, app or tenant.
            NotJson: A value of the state or of the metadata cannot be recorded.
            UserForgotten: The data of the user is being deleted.
            UnknownAgent: Workers have announced their agents in this namespace, but none has announced this one.
        """
        await self.agents.check(agent)
        optional = {
            **to_plain_json({"state": dict(state or {}), "metadata": dict(metadata or {})}),
            "user_id": user_id,
            "session_id": session_id,
            "app": app,
            "budget": budget.model_dump() if budget else None,
            "requester": requester,
            **streaming_fields(streaming),
            "tenant": tenant,
        }
        params = {"agent": agent, "message": message, **{key: value for key, value in optional.items() if value}}
        invocation_id = id or _generate_id(self.temporal, agent, app or DEFAULT_APP, user_id or DEFAULT_USER, tenant)
        try:
            return Invocation(self, await start_invocation(self, invocation_id, params, token=token, priority=priority))
        except WorkflowAlreadyStartedError:
            owner = Owner(ids.app_key(app or DEFAULT_APP, tenant), user_id or DEFAULT_USER)
            return await self._find_existing(invocation_id, owner, tenant)

    async def _find_existing(self, invocation_id: str, owner: Owner, tenant: str | None) -> Invocation:
        """Return an invocation that exists, unless its ID belongs to something else, or to somebody else."""
        handle = self.temporal.get_workflow_handle(invocation_id)
        described = await handle.describe()
        recorded = await read_owner(self.temporal, described)
        key = described.raw_description.workflow_execution_info.priority.fairness_key
        is_same = recorded == owner if recorded else ids.tenant_of_fairness_key(key) == tenant
        if described.workflow_type == WORKFLOW and is_same:
            return Invocation(self, handle, existed=True)
        raise InvalidInput(
            f"The ID {invocation_id!r} is in use by another workflow, or by an invocation of another user, app or "
            "tenant. Choose another ID."
        ) from None

    async def searchable(self, tenant: str | None = None, *, again: bool = False) -> bool | None:
        """Return whether the namespace has the search attributes that an invocation needs.

        Return None if the server does not tell. The result is remembered for a minute, or for 5 s if search attributes
        are missing or unknown, unless `again` is set.
        """
        if again or time.monotonic() >= self._check_at:
            before = self._missing
            try:
                self._missing = await find_missing(self.temporal)
            except RPCError:
                self._missing = None
            self._check_at = time.monotonic() + (COMPLETE_S if self._missing == [] else INCOMPLETE_S)
            if before == [] and self._missing:
                log.warning("search_attributes.missing", namespace=self.temporal.namespace, remedy=REMEDY)
        return None if self._missing is None else suffices(self._missing, tenant)

    async def run(self, agent: str, message: str | JsonObject, **options: Any) -> InvocationResult:
        """Start an invocation and wait for its result; see `start` and `Invocation.result`."""
        return await (await self.start(agent, message, **options)).result()

    async def schedule(
        self,
        agent: str,
        message: str | JsonObject,
        spec: ScheduleSpec,
        *,
        id: str | None = None,
        policy: SchedulePolicy | None = None,
        priority: int | None = None,
        token: TokenSigner | None = None,
        **fields: Any,
    ) -> ScheduleHandle:
        """Create a Temporal schedule that starts an invocation at the times in `spec`, and return its handle.

        Args:
            agent: Name of the root agent.
            message: Text, or a genai `Content` as JSON.
            spec: The times.
            id: ID of the schedule, by default the name of the agent. The ID of each invocation is this ID and the time.
            policy: The schedule's policy, for example what happens while the previous invocation is still running. By
                default, a start is then skipped.
            priority: The priority of each invocation; see `start`.
            token: A function that signs for the person who triggers the invocations, such as
                `waystation.approvers.identity.Gateway.signer`. A provider's token is not possible, because it expires.
            fields: Other fields of the invocation's input, such as `state`, `user_id`, `budget` or `tenant`.

        Raises:
            InvalidInput: A field is not valid.
            InvalidConfiguration: No key is configured for encrypting the token.
            UserForgotten: The data of the user is being deleted.
            ScheduleAlreadyRunningError: A schedule with this ID exists.
            UnknownAgent: Workers have announced their agents in this namespace, but none has announced this one.
        """
        await self.agents.check(agent)
        schedule_id = id or agent
        try:
            started = InvocationInput.model_validate({"agent": agent, "message": message, **fields})
        except ValidationError as error:
            raise InvalidInput(f"The invocation's input is not valid: {describe_faults(error)}.") from None
        await check_owner(self, schedule_id, started.app_key, started.user_id)
        if token is not None:
            started = started.model_copy(update={"schedule": schedule_id})
            place = {"namespace": self.temporal.namespace, "approval_id": schedule_id}
            encrypted = self.token_encryption.encrypt(token, **place, answer=started.request())
            started = started.model_copy(update={"token": encrypted})
        searchable = await self.searchable(started.tenant)
        action = ScheduleActionStartWorkflow(
            WORKFLOW,
            decode(started.encode()),
            id=schedule_id,
            task_queue=self.task_queue,
            task_timeout=TASK_TIMEOUT,
            static_summary=summary.message(started.message),
            typed_search_attributes=make_start_attributes(started) if searchable else TypedSearchAttributes.empty,
            priority=make_priority(started.app_key, started.user_id, priority),
        )
        return await self.temporal.create_schedule(
            schedule_id, Schedule(action, spec, policy=policy or SchedulePolicy())
        )

    def invocation(self, id: str, *, run_id: str | None = None) -> Invocation:
        """Return a handle for the invocation with this ID, whether or not it exists."""
        return Invocation.from_id(self, id, run_id=run_id)

    async def reset(self, id: str, event_id: int, *, reason: str, keep_answers: bool = False) -> str:
        """Reset the latest run of an invocation to the end of a workflow task, and return the ID of the new run.

        The new run repeats what followed that task. Tools that run again receive their previous idempotency keys.

        Args:
            id: The invocation ID.
            event_id: ID of the `WorkflowTaskCompleted` event in the history that ends the task.
            reason: Recorded in the history and in audits.
            keep_answers: Send the answers and messages that followed that event to the new run, too. By default, calls
                wait for new answers.

        Raises:
            InvalidInput: The history has no such event, or the event does not end a workflow task.
            RPCError: The invocation does not exist, or the server does not respond.
        """
        request = ResetWorkflowExecutionRequest(
            namespace=self.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=id),
            workflow_task_finish_event_id=event_id,
            reason=reason,
            reset_reapply_exclude_types=() if keep_answers else _ANSWERS,
            request_id=str(uuid.uuid4()),
        )
        try:
            return (await self.temporal.workflow_service.reset_workflow_execution(request)).run_id
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            raise InvalidInput(
                f"{id!r} cannot be reset to history event {event_id}. Pass the ID of a `WorkflowTaskCompleted` event "
                "of its latest run; `waystation history` lists them."
            ) from None

    def stream(self, id: str, *, start: int = 0, partial: bool = False) -> AsyncIterator[Event]:
        """Yield the events of an invocation as they are recorded; see `Invocation.stream`."""
        return self.invocation(id).stream(start=start, partial=partial)

    async def authorize(self, auth_response_uri: str, *, store: CredentialKeeper) -> list[JsonObject]:
        """Finish a login, approve all calls that are waiting for it, and return the receipts.

        `auth_response_uri` is the URI that the provider redirected the user to.

        Raises:
            AuthorizationFailed: The login is unknown or did not produce a token. The message contains no secrets.
        """
        return await approve_calls(self, (await store.authorize(auth_response_uri=auth_response_uri)).calls)

    def session(
        self, *, agent: str, session_id: str, user_id: str = DEFAULT_USER, app: str = DEFAULT_APP, **options: Any
    ) -> Session:
        """Return a handle for the session with these names, whether or not it exists; see `Session` for options."""
        return Session(self, agent=agent, session_id=session_id, user_id=user_id, app=app, **options)

    async def delete_session(
        self,
        session_id: str,
        *,
        user_id: str = DEFAULT_USER,
        app: str = DEFAULT_APP,
        tenant: str | None = None,
        artifacts: ArtifactKeeper | None = None,
        memory: MemoryKeeper | None = None,
        grace: timedelta = GRACE,
    ) -> DeletedSession:
        """Delete a session; see `sessions.delete`."""
        return await self.sessions.delete(
            session_id, user_id=user_id, app=app, tenant=tenant, artifacts=artifacts, memory=memory, grace=grace
        )

    async def forget_user(
        self,
        user_id: str,
        *,
        app: str | None = None,
        tenant: str | None = None,
        artifacts: UserStore | None = None,
        memory: UserStore | None = None,
        credentials: UserStore | None = None,
        usage: UsageStore | None = None,
        grace: timedelta = GRACE,
        dry_run: bool = False,
    ) -> DeletedUser:
        """Delete everything that is stored for a user, and return what was deleted and what could not be.

        Until this method has returned, whatever would start for the user is refused with `UserForgotten`, also after an
        interruption. The user's schedules are deleted and open invocations and sessions are canceled first. Deletion
        does not require a running worker, and is safe to repeat, even after an interruption. The server deletes
        workflows in the background, after about 30 seconds.

        Args:
            user_id: The user.
            app: Only data in this app. By default, in all apps.
            tenant: The user's tenant. Without it, only data outside of tenants is deleted.
            artifacts: The artifact service, such as `waystation.artifacts.ObjectStoreArtifactService(url)`. If None,
                artifacts are kept, and the same applies to the other stores.
            memory: The memory service, such as `waystation.memory.SqliteMemoryService(path)`.
            credentials: The credential store, such as `waystation.auth.EncryptedFileCredentialService(path)`.
            usage: The quota store, `waystation.storage.quota_store.QuotaStore(place)`.
            grace: Time that running tools have to finish before their invocations are terminated.
            dry_run: Only return what would be deleted.

        Raises:
            ValueError: The app or the tenant is not valid.
            StoreFailed: A store is unavailable, so the deletion is incomplete. Repeat it later.
            CredentialStoreError: The same for the credential store.
        """
        ids.app_key(app or DEFAULT_APP, tenant)
        deletion = UserDeletion(
            temporal=self.temporal,
            task_queue=self.task_queue,
            user_id=user_id,
            app=app,
            tenant=tenant,
            grace=grace,
            dry_run=dry_run,
        )
        return await deletion.run({"artifacts": artifacts, "memories": memory, "credentials": credentials}, usage)

    async def pending(
        self,
        *,
        below: str | None = None,
        user_id: str | None = None,
        tenant: str | None = None,
        person: Asked | None = None,
    ) -> list[PendingCall]:
        """Return all pending calls, oldest first; see `approvals.pending`."""
        return await self.approvals.pending(below=below, user_id=user_id, tenant=tenant, person=person)

    @property
    def state(self) -> ScopedState:
        """User and app state under its former name, which version 0.3 removes."""
        names = "`user_state`, `app_state`, `delete_user_state` or `delete_app_state`"
        warnings.warn(f"`client.state` is deprecated. Use {names} of the client.", DeprecationWarning, stacklevel=2)
        return self._state

    async def user_state(
        self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER, tenant: str | None = None
    ) -> JsonObject:
        """Return a user's state in an app; see `ScopedState.user`."""
        return await self._state.user(app=app, user_id=user_id, tenant=tenant)

    async def app_state(self, *, app: str = DEFAULT_APP, tenant: str | None = None) -> JsonObject:
        """Return an app's state; see `ScopedState.app`."""
        return await self._state.app(app=app, tenant=tenant)

    async def delete_user_state(
        self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER, tenant: str | None = None
    ) -> bool:
        """Delete a user's state in an app; see `ScopedState.delete_user`."""
        return await self._state.delete_user(app=app, user_id=user_id, tenant=tenant)

    async def delete_app_state(self, *, app: str = DEFAULT_APP, tenant: str | None = None) -> bool:
        """Delete an app's state; see `ScopedState.delete_app`."""
        return await self._state.delete_app(app=app, tenant=tenant)


def _generate_id(client: Client, agent: str, app: str, user_id: str, tenant: str | None) -> str:
    name = f"{agent}-{uuid.uuid4().hex[:12]}"
    if find_user_keys_of(client) is not None:
        with suppress(ValueError):  # which names are not valid is reported when the input is validated
            return ids.owned_invocation(ids.app_key(app, tenant), user_id, name)
    return name


def _open_artifacts(place: str | Path) -> ArtifactSaver:
    from waystation.artifacts import ObjectStoreArtifactService  # slow to import: it loads object stores

    return ObjectStoreArtifactService(place)
