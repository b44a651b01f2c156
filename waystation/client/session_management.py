"""List and delete sessions, and the state that outlives them. No worker has to run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from urllib.parse import unquote

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from waystation.core import (
    DEFAULT_APP,
    DEFAULT_USER,
    MEMO_SESSION,
    SESSION_WORKFLOW,
    JsonObject,
    app_scope,
    copy_json,
    ids,
    user_scope,
)
from waystation.history import ScopeReader, WorkflowRun, describe_workflow, find_session_runs, none_if_missing

_ENDED: dict[int, str] = {
    WorkflowExecutionStatus.COMPLETED: "closed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One session of a list."""

    id: str
    """Workflow id."""
    app: str
    user_id: str
    session_id: str
    agent: str
    """Empty until a worker has run the session's first workflow task."""
    status: str
    """`open`, `waiting` for an approver, `closed`; or how its workflow ended."""
    started_at: datetime
    """When its current run started; long sessions continue as new."""

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        return {**asdict(self), "started_at": self.started_at.isoformat()}


def _names(workflow_id: str) -> tuple[str, str, str] | None:
    """Return the names of which a session's id is made."""
    match workflow_id.split("/"):
        case ["session", app, user_id, session_id]:
            names = unquote(app), unquote(user_id), unquote(session_id)
            with suppress(ValueError):
                if ids.session(*names) == workflow_id:
                    return names
    return None


GRACE = timedelta(seconds=5)
"""How long running tools may take to end after a cancellation."""
AT_A_TIME = 20
REASON = "the session is deleted"


class ArtifactKeeper(Protocol):
    """The part of an artifact service that a deletion needs; see `waystation.artifacts.BaseArtifactService`."""

    async def delete_session_artifacts(self, *, app_name: str, user_id: str, session_id: str) -> list[str]:
        """Delete all artifacts of one session, and return their names."""


class MemoryKeeper(Protocol):
    """The part of a memory service that a deletion needs; see `waystation.memory.BaseMemoryService`."""

    async def delete_session_memory(self, *, app_name: str, user_id: str, session_id: str) -> int:
        """Delete the memories of one session, and return how many there were."""


@dataclass(slots=True)
class DeletedSession:
    """What a deletion found and deleted.

    The server deletes workflows in the background, about half a minute later; until then a repetition finds them
    again.
    """

    id: str
    """Workflow id of the session."""
    workflows: list[str] = field(default_factory=list)
    """Ids of the session, its invocations, and the agents that they called."""
    runs: int = 0
    """How many runs these workflows had."""
    stopped: list[str] = field(default_factory=list)
    """Those of them that were running."""
    artifacts: list[str] = field(default_factory=list)
    memories: int = 0
    left: list[str] = field(default_factory=list)
    """What was not deleted, and why."""

    def __bool__(self) -> bool:
        return bool(self.workflows or self.artifacts or self.memories)

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        return asdict(self)


async def _stop(client: Client, deleted: DeletedSession, grace: timedelta) -> dict[WorkflowRun, bool]:
    """End all running workflows, and return all runs there are.

    The session is cancelled first, so that it starts nothing more; it and its invocations notify running tools. A
    workflow that has not ended in time, without a worker or because of a tool that ignores it, is terminated.
    """
    asked = grace <= timedelta()
    found: dict[WorkflowRun, bool] = {}
    while True:
        before, found = found, await find_session_runs(client, deleted.id)
        for run in before.keys() - found.keys():  # told by a workflow that ran, and has ended since
            if described := await describe_workflow(client, run.workflow_id):
                going_on = described.status is WorkflowExecutionStatus.RUNNING
                found[WorkflowRun(run.workflow_id, described.run_id)] = going_on
        running = sorted(run for run, going_on in found.items() if going_on)
        if not running:
            return found
        deleted.stopped = sorted({*deleted.stopped, *(run.workflow_id for run in running)})
        if asked:
            await _for_each(running, lambda run: _handle(client, run).terminate(REASON))
        else:
            await _for_each(running, lambda run: _handle(client, run).cancel())
            with suppress(TimeoutError):
                async with asyncio.timeout(grace.total_seconds()):
                    await asyncio.gather(*(_wait_for_end(client, run) for run in running))
            asked = True


async def _wait_for_end(client: Client, run: WorkflowRun) -> None:
    with suppress(WorkflowFailureError, RPCError):  # it ended otherwise, or is gone
        await _handle(client, run).result(follow_runs=False)


async def _forget(client: Client, found: Iterable[WorkflowRun], deleted: DeletedSession) -> None:
    """Delete runs, the session's own last: as long as it is there, it is listed, and its deletion can be repeated."""
    runs = sorted(found, key=lambda run: (run.workflow_id == deleted.id, run))
    below = [run for run in runs if run.workflow_id != deleted.id]
    for group in (below, runs[len(below) :]):
        await _for_each(group, lambda run: delete_run(client, run))
    deleted.workflows = sorted({*deleted.workflows, *(run.workflow_id for run in runs)})
    deleted.runs += len(runs)


async def delete_run(client: Client, run: WorkflowRun) -> None:
    """Have the server delete one run of a workflow.

    Raises:
        RPCError: The server does not know it, or does not answer.
    """
    request = DeleteWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=run.workflow_id, run_id=run.run_id),
    )
    await client.workflow_service.delete_workflow_execution(request)


def _handle(client: Client, run: WorkflowRun) -> WorkflowHandle[Any, Any]:
    return client.get_workflow_handle(run.workflow_id, run_id=run.run_id)


async def _for_each(runs: Iterable[WorkflowRun], work: Callable[[WorkflowRun], Awaitable[None]]) -> None:
    """Do something with each run, some at a time; what is gone already needs nothing."""
    bound = asyncio.Semaphore(AT_A_TIME)

    async def one(run: WorkflowRun) -> None:
        async with bound:
            await none_if_missing(work(run))

    await asyncio.gather(*map(one, runs))


class Sessions:
    """The sessions of the namespace; `AgentClient.sessions`. Call it to list them, as `list` does."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal

    async def list(
        self, *, agent: str | None = None, user_id: str | None = None, app: str | None = None
    ) -> AsyncIterator[SessionEntry]:
        """Yield the sessions in the namespace, latest start first. No worker has to run.

        They come from visibility, which may lag behind by a second.

        Args:
            agent: Only those of this agent.
            user_id: Only those of this user.
            app: Only those of this app.
        """
        # By the memo and not by search attributes, which a namespace may lack.
        wanted = {"agent": agent, "user_id": user_id, "app": app}
        query = f"WorkflowType = '{SESSION_WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
        seen = set[str]()
        async for execution in self._temporal.list_workflows(query):
            names = _names(execution.id)
            # It may be somebody else's workflow of that type, which cannot have begun; or a run in whose place a reset
            # has put another, which began later.
            if names is None or execution.id in seen:
                continue
            seen.add(execution.id)
            # Agent and status come from the memo, which a session has from its first workflow task on.
            memo = (await execution.memo()).get(MEMO_SESSION)
            about: JsonObject = memo if isinstance(memo, dict) else {}
            entry = SessionEntry(
                id=execution.id,
                app=names[0],
                user_id=names[1],
                session_id=names[2],
                agent=str(about.get("agent") or ""),
                status=_ENDED.get(execution.status or 0) or str(about.get("status") or "open"),
                started_at=execution.start_time,
            )
            if all(value is None or getattr(entry, name) == value for name, value in wanted.items()):
                yield entry

    __call__ = list

    async def delete(
        self,
        session_id: str,
        *,
        user_id: str = DEFAULT_USER,
        app: str = DEFAULT_APP,
        artifacts: ArtifactKeeper | None = None,
        memory: MemoryKeeper | None = None,
        grace: timedelta = GRACE,
    ) -> DeletedSession:
        """Delete a session: its workflows, its artifacts, and its memories.

        Running invocations are cancelled first. No worker has to run. State and artifacts of the user (`user:`), and
        memories that a tool added with `add_memory`, do not belong to the session and stay. May be repeated, also after
        an interruption. The server deletes in the background, about half a minute later; until then no new session can
        have that name.

        Args:
            session_id: Which of the user's sessions.
            user_id: Its user.
            app: Its app.
            artifacts: The store of its artifacts, such as `waystation.artifacts.ObjectStoreArtifactService(url)`.
            memory: The store of its memories, such as `waystation.memory.SqliteMemoryService(path)`.
            grace: How long running tools may take to end; afterwards their invocations are terminated.

        Raises:
            ValueError: No session can have such names.
            StoreFailed: A store cannot be reached. What was deleted so far is gone; repeat the deletion.
        """
        deleted = DeletedSession(ids.session(app, user_id, session_id))
        where = {"app_name": app, "user_id": user_id, "session_id": session_id}
        runs = await _stop(self._temporal, deleted, grace)
        # Not before all has ended: what still runs might save more.
        if artifacts is None:
            deleted.left.append("artifacts: no artifact service was given")
        else:
            deleted.artifacts = await artifacts.delete_session_artifacts(**where)
        if memory is None:
            deleted.left.append("memories: no memory service was given")
        else:
            try:
                deleted.memories = await memory.delete_session_memory(**where)
            except NotImplementedError as error:
                deleted.left.append(f"memories: {error}")
        while runs:
            await _forget(self._temporal, runs, deleted)
            # What visibility had not listed yet.
            remaining = await _stop(self._temporal, deleted, timedelta())
            runs = {run: False for run in remaining if run not in runs}
        return deleted


class ScopedState:
    """State that outlives sessions; `AgentClient.state`."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal

    async def user(self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER) -> JsonObject:
        """Return a user's state in an app, with the prefix `user:` in its keys; empty when nothing is stored.

        Raises:
            ScopeNameTooLong: The names do not fit into an id, so nothing can be stored for them.
        """
        return await self._read(user_scope(app, user_id))

    async def app(self, *, app: str = DEFAULT_APP) -> JsonObject:
        """Return an app's state, with the prefix `app:` in its keys; empty when nothing is stored.

        Raises:
            ScopeNameTooLong: The name does not fit into an id.
        """
        return await self._read(app_scope(app))

    async def delete_user(self, *, app: str = DEFAULT_APP, user_id: str = DEFAULT_USER) -> bool:
        """Delete a user's state in an app; return whether there was any. Later writes start from nothing."""
        return await self._delete(user_scope(app, user_id))

    async def delete_app(self, *, app: str = DEFAULT_APP) -> bool:
        """Delete an app's state; return whether there was any. Later writes start from nothing."""
        return await self._delete(app_scope(app))

    async def _read(self, scope_id: str) -> JsonObject:
        state: JsonObject = copy_json((await ScopeReader(self._temporal).read(scope_id)).state)
        return state

    async def _delete(self, scope_id: str) -> bool:
        described = await describe_workflow(self._temporal, scope_id)
        if described is None:
            return False
        # Terminated first: the deletion takes a while, and nothing may be read or written in the meantime.
        with suppress(RPCError):
            await self._temporal.get_workflow_handle(scope_id).terminate("the state was deleted")
        with suppress(RPCError):  # terminated, it reads as empty, and the namespace's retention removes it
            await delete_run(self._temporal, WorkflowRun(scope_id, described.run_id))
        return True
