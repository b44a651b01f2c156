"""List and delete sessions, and read and delete the state that outlives them. None of this needs a running worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from urllib.parse import unquote

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WorkflowContinuedAsNewError,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.client import WorkflowExecution as ListedExecution
from temporalio.service import RPCError

from waystation.core import ids
from waystation.core.contract import DEFAULT_APP, DEFAULT_USER, MEMO_SESSION, SESSION_WORKFLOW, WORKFLOW
from waystation.core.payload import JsonObject, copy_json
from waystation.core.scope_state import app_scope, user_scope
from waystation.history import (
    ScopeReader,
    WorkflowRun,
    describe_workflow,
    fetch_or_none,
    find_open_workflows,
    find_session_runs,
    list_open,
    read_memo,
)

_ENDED: dict[int, str] = {
    WorkflowExecutionStatus.COMPLETED: "closed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One session in the list of sessions."""

    id: str
    """Workflow ID of the session."""
    app: str
    user_id: str
    session_id: str
    agent: str
    """Name of the agent. Empty until a worker has run the session's first workflow task."""
    status: str
    """`open`, `waiting` (for an approver), `closed`, `failed`, `cancelled`, `terminated` or `timed_out`."""
    started_at: datetime
    """Start time of the current run. A long session may have started earlier, because sessions continue as new."""
    tenant: str | None = None

    def to_json(self) -> JsonObject:
        """Return the entry as JSON."""
        return {**asdict(self), "started_at": self.started_at.isoformat()}


@dataclass(frozen=True, slots=True)
class SessionActivity:
    """How much a session was used."""

    turns: int
    """Number of messages that have started an invocation."""
    last_at: datetime | None
    """When the latest invocation started or ended, or None if there is none."""


def parse_session_id(workflow_id: str) -> tuple[str, str, str] | None:
    """Return the app's key, the user ID and the session ID, or None if the workflow is not a session."""
    match workflow_id.split("/"):
        case ["session", app, user_id, session_id]:
            names = unquote(app), unquote(user_id), unquote(session_id)
            with suppress(ValueError):
                if ids.session(*names) == workflow_id:
                    return names
    return None


GRACE = timedelta(seconds=5)
"""Default time that running tools have to finish after a cancellation."""
RECENT, MAX_TURNS = 20, 1_000
"""Number of recent invocations of a session among which the latest is searched, and of all sessions of one request."""
AT_A_TIME = 20
"""Maximum number of concurrent requests."""
MAX_ROUNDS = 10
"""How often workflows are looked for that still have to be stopped. Programs could start more all the time."""
REASON = "the workflow is deleted"


async def read_session_entry(execution: ListedExecution, names: tuple[str, str, str]) -> SessionEntry:
    """Return the entry of a session, given its workflow and what `parse_session_id` returned for its ID."""
    memo = (await read_memo(execution)).get(MEMO_SESSION)
    summary: JsonObject = memo if isinstance(memo, dict) else {}
    app, tenant = ids.parse_app_key(names[0])
    return SessionEntry(
        id=execution.id,
        app=app,
        user_id=names[1],
        session_id=names[2],
        agent=str(summary.get("agent") or ""),
        status=_ENDED.get(execution.status or 0) or str(summary.get("status") or "open"),
        started_at=execution.start_time,
        tenant=tenant,
    )


class ArtifactKeeper(Protocol):
    """The deletion interface of an artifact service; see `waystation.artifacts.BaseArtifactService`."""

    async def delete_session_artifacts(self, *, app_name: str, user_id: str, session_id: str) -> list[str]:
        """Delete all artifacts of a session, and return their names."""


class MemoryKeeper(Protocol):
    """The deletion interface of a memory service; see `waystation.memory.BaseMemoryService`."""

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Delete a session's memories, and return the number of deleted memories."""


@dataclass(slots=True)
class DeletedSession:
    """The result of deleting a session, or another workflow, with its descendants.

    The server deletes workflows in the background, after about 30 seconds. Until then, deleting the session again lists
    the same workflows.
    """

    id: str
    """Workflow ID of the session or the other workflow."""
    workflows: list[str] = field(default_factory=list)
    """Workflow IDs of the session, its invocations, and the agents that they called."""
    runs: int = 0
    """Number of runs of these workflows."""
    stopped: list[str] = field(default_factory=list)
    """IDs of the workflows that were still running and had to be stopped."""
    artifacts: list[str] = field(default_factory=list)
    memories: int = 0
    left: list[str] = field(default_factory=list)
    """Parts of the session that were not deleted, each with the reason."""

    def __bool__(self) -> bool:
        return bool(self.workflows or self.artifacts or self.memories)

    def to_json(self) -> JsonObject:
        """Return the result as JSON."""
        return asdict(self)


async def stop_runs(
    client: Client, find: Callable[[], Awaitable[dict[WorkflowRun, bool]]], grace: timedelta
) -> tuple[set[WorkflowRun], set[str]]:
    """Stop the running ones among the runs that `find` returns. Return all runs, and the IDs of the stopped workflows.

    Unless `grace` is zero, workflows are canceled first, so that sessions do not start anything else and running tools
    are notified. Workflows that do not end in time are terminated, as are those that have nothing to cancel.

    `find` is called again until it returns only closed runs, but at most `MAX_ROUNDS` times.
    """
    is_cancelled = grace <= timedelta()
    runs: dict[WorkflowRun, bool] = {}
    stopped = set[str]()
    for _ in range(MAX_ROUNDS):
        before, runs = runs, await find()
        # Listed by a workflow that has ended since.
        runs |= list_open(await find_open_workflows(client, {run.workflow_id for run in before.keys() - runs.keys()}))
        running = sorted(run for run, is_running in runs.items() if is_running)
        if not running:
            break
        stopped |= {run.workflow_id for run in running}
        idle = running if is_cancelled else [run for run in running if await _is_idle(client, run, stopped)]
        await _for_each(idle, lambda run: _get_handle(client, run).terminate(REASON))
        if busy := [run for run in running if run not in idle]:
            await _for_each(busy, lambda run: _get_handle(client, run).cancel())
            with suppress(TimeoutError):
                async with asyncio.timeout(grace.total_seconds()):
                    await asyncio.gather(*(_wait_for_end(client, run) for run in busy))
        is_cancelled = True
    return set(runs), stopped


async def _is_idle(client: Client, run: WorkflowRun, stopped: Collection[str]) -> bool:
    """Return whether a workflow has nothing to cancel, and no stopped workflow to report to. It may have no worker."""
    described = await describe_workflow(client, run.workflow_id)
    return described is not None and not (
        described.parent_id in stopped
        or described.raw_description.pending_children
        or described.raw_description.pending_activities
    )


async def _wait_for_end(client: Client, run: WorkflowRun) -> None:
    # It failed, continued as new, or was deleted.
    with suppress(WorkflowFailureError, WorkflowContinuedAsNewError, RPCError):
        await _get_handle(client, run).result(follow_runs=False)


async def delete_runs(client: Client, runs: Iterable[WorkflowRun]) -> None:
    """Delete several runs."""
    await _for_each(runs, lambda run: delete_run(client, run))


async def delete_run(client: Client, run: WorkflowRun) -> None:
    """Delete one run of a workflow.

    Raises:
        RPCError: The server does not have the run or does not respond.
    """
    request = DeleteWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=run.workflow_id, run_id=run.run_id),
    )
    await client.workflow_service.delete_workflow_execution(request)


def _get_handle(client: Client, run: WorkflowRun) -> WorkflowHandle[Any, Any]:
    return client.get_workflow_handle(run.workflow_id, run_id=run.run_id)


async def _for_each(runs: Iterable[WorkflowRun], request: Callable[[WorkflowRun], Awaitable[None]]) -> None:
    """Send a request for each run, several at a time. Runs that no longer exist are ignored."""
    limit = asyncio.Semaphore(AT_A_TIME)

    async def send(run: WorkflowRun) -> None:
        async with limit:
            await fetch_or_none(request(run))

    await asyncio.gather(*map(send, runs))


class Sessions:
    """All sessions in the namespace, available as `AgentClient.sessions`. Calling this object is the same as `list`."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal

    async def list(
        self,
        *,
        agent: str | None = None,
        user_id: str | None = None,
        app: str | None = None,
        tenant: str | None = None,
    ) -> AsyncIterator[SessionEntry]:
        """Yield the sessions in the namespace, most recently started first. This does not require a running worker.

        Sessions are read from visibility, which may lag by a second.

        Args:
            agent: Only sessions of this agent.
            user_id: Only sessions of this user.
            app: Only sessions of this app.
            tenant: Only sessions of this tenant.
        """
        # Filter by ID and memo here instead of by search attributes, because a namespace may lack them.
        filters = {"agent": agent, "user_id": user_id, "app": app, "tenant": tenant}
        query = f"WorkflowType = '{SESSION_WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
        seen = set[str]()
        async for execution in self._temporal.list_workflows(query):
            names = parse_session_id(execution.id)
            # Skip workflows of this type whose ID is not a session ID, and earlier runs that a reset has replaced.
            if names is None or execution.id in seen:
                continue
            seen.add(execution.id)
            # The memo contains the agent and the status only after the session's first workflow task.
            entry = await read_session_entry(execution, names)
            if all(value is None or getattr(entry, name) == value for name, value in filters.items()):
                yield entry

    __call__ = list

    async def find_activities(self, ids: Sequence[str]) -> dict[str, SessionActivity]:
        """Return the activity of sessions by their workflow IDs. The values may lag by a second."""
        names, limit = ", ".join(f"'{id}'" for id in ids), RECENT if len(ids) == 1 else MAX_TURNS
        query = f"ParentWorkflowId IN ({names}) AND WorkflowType = '{WORKFLOW}'"
        # The list begins with open and recently started invocations, so that these include the one with most turns.
        found = [each async for each in self._temporal.list_workflows(query, limit=limit)] if ids else []
        activities = dict[str, SessionActivity]()
        for id in ids:
            recent = [each for each in found if each.parent_id == id]
            if len(recent) < RECENT and len(found) == limit == MAX_TURNS:
                activities |= await self.find_activities([id])
                continue
            numbers = [number for each in recent if (number := each.id.rpartition("/")[2]).isdecimal()]
            times = [each.close_time or each.start_time for each in recent]
            activities[id] = SessionActivity(max(map(int, numbers), default=0), max(times, default=None))
        return activities

    async def delete(
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
        """Delete a session with its workflows, artifacts and memories.

        Running invocations are canceled first. The user's state and artifacts (`user:`) and memories saved by
        `add_memory` do not belong to the session and are kept. Deletion does not require a running worker, and is safe
        to repeat, even after an interruption. The server deletes workflows in the background, after about 30 seconds.
        Until then, no new session can have the same name.

        Args:
            session_id: ID of the session.
            user_id: The session's user.
            app: The session's app.
            tenant: The session's tenant.
            artifacts: The artifact service, such as `waystation.artifacts.ObjectStoreArtifactService(url)`. If None,
                artifacts are kept.
            memory: The memory service, such as `waystation.memory.SqliteMemoryService(path)`. If None, memories are
                kept.
            grace: Time that running tools have to finish before their invocations are terminated.

        Raises:
            ValueError: The names are not valid for a session.
            StoreFailed: A store is unavailable, so the deletion is incomplete. Repeat it later.
        """
        key = ids.app_key(app, tenant)
        deleted = DeletedSession(ids.session(key, user_id, session_id))
        names = ids.stored_names(key, user_id, session_id)

        async def find() -> dict[WorkflowRun, bool]:
            return await find_session_runs(self._temporal, deleted.id)

        runs, stopped = await stop_runs(self._temporal, find, grace)
        # Delete artifacts and memories only now, because running workflows could have saved more of them.
        if artifacts is None:
            deleted.left.append("artifacts: no artifact service was given")
        else:
            deleted.artifacts = await artifacts.delete_session_artifacts(**names)
        if memory is None:
            deleted.left.append("memories: no memory service was given")
        else:
            try:
                deleted.memories = await memory.delete_session_memory(**names)
            except NotImplementedError as error:
                deleted.left.append(f"memories: {error}")
        known = set[WorkflowRun]()
        while new := runs - known:
            # The session itself comes last: as long as it exists, it is listed and its deletion can be repeated.
            for is_session in (False, True):
                await delete_runs(self._temporal, [r for r in new if (r.workflow_id == deleted.id) is is_session])
            known |= new
            # Find runs that visibility had not listed before.
            runs, more = await stop_runs(self._temporal, find, timedelta())
            stopped |= more
        deleted.workflows = sorted({run.workflow_id for run in known})
        deleted.runs, deleted.stopped = len(known), sorted(stopped)
        return deleted


class ScopedState:
    """The state of users and apps, which outlives sessions. Available as `AgentClient.state`."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal

    async def user(
        self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER, tenant: str | None = None
    ) -> JsonObject:
        """Return a user's state in an app, with keys that start with `user:`. It is empty if nothing is stored.

        Raises:
            ScopeNameTooLong: The names are too long for a workflow ID.
            ValueError: The app or the tenant is not valid.
        """
        return await self._read(user_scope(ids.app_key(app, tenant), user_id))

    async def app(self, *, app: str = DEFAULT_APP, tenant: str | None = None) -> JsonObject:
        """Return an app's state, with keys that start with `app:`. It is empty if nothing is stored.

        Raises:
            ScopeNameTooLong: The name is too long for a workflow ID.
            ValueError: The app or the tenant is not valid.
        """
        return await self._read(app_scope(ids.app_key(app, tenant)))

    async def delete_user(
        self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER, tenant: str | None = None
    ) -> bool:
        """Delete a user's state in an app, and return whether there was any. Later writes start from an empty state."""
        return await self._delete(user_scope(ids.app_key(app, tenant), user_id))

    async def delete_app(self, *, app: str = DEFAULT_APP, tenant: str | None = None) -> bool:
        """Delete an app's state, and return whether there was any. Later writes start from an empty state."""
        return await self._delete(app_scope(ids.app_key(app, tenant)))

    async def _read(self, scope_id: str) -> JsonObject:
        state: JsonObject = copy_json((await ScopeReader(self._temporal).read(scope_id)).state)
        return state

    async def _delete(self, scope_id: str) -> bool:
        described = await describe_workflow(self._temporal, scope_id)
        if described is None:
            return False
        # Terminate first: deletion takes a while, and until then no one should read or write the state.
        with suppress(RPCError):
            await self._temporal.get_workflow_handle(scope_id).terminate("the state was deleted")
        with suppress(RPCError):  # a terminated scope reads as empty, and the namespace's retention removes it
            await delete_run(self._temporal, WorkflowRun(scope_id, described.run_id))
        return True
