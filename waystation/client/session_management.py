"""List and delete sessions. No worker has to run."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from urllib.parse import unquote

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from waystation.core import ids
from waystation.core.payload import JsonObject
from waystation.core.wire import DEFAULT_APP, DEFAULT_USER, MEMO_SESSION, SESSION_WORKFLOW
from waystation.history import WorkflowRun, describe_workflow, find_session_runs

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


async def _list_sessions(
    client: Client, *, agent: str | None = None, user_id: str | None = None, app: str | None = None
) -> AsyncIterator[SessionEntry]:
    """Yield sessions, those that began last first; see `Sessions.list`."""
    # By the memo and not by search attributes, which a namespace may lack.
    wanted = {"agent": agent, "user_id": user_id, "app": app}
    query = f"WorkflowType = '{SESSION_WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
    seen = set[str]()
    async for execution in client.list_workflows(query):
        names = _names(execution.id)
        # It may be somebody else's workflow of that type, which cannot have begun; or a run in whose place a reset has
        # put another, which began later.
        if names is None or execution.id in seen:
            continue
        seen.add(execution.id)
        # Only who answers is told by the memo, which a session has from its first workflow task on.
        about = (await execution.memo()).get(MEMO_SESSION)
        told: JsonObject = about if isinstance(about, dict) else {}
        entry = SessionEntry(
            id=execution.id,
            app=names[0],
            user_id=names[1],
            session_id=names[2],
            agent=str(told.get("agent") or ""),
            status=_ENDED.get(execution.status or 0) or str(told.get("status") or "open"),
            started_at=execution.start_time,
        )
        if all(value is None or getattr(entry, name) == value for name, value in wanted.items()):
            yield entry


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


async def _delete_session(
    client: Client,
    *,
    app: str,
    user_id: str,
    session_id: str,
    artifacts: ArtifactKeeper | None,
    memory: MemoryKeeper | None,
    grace: timedelta = GRACE,
) -> DeletedSession:
    """Delete a session; see `Sessions.delete`."""
    deleted = DeletedSession(ids.session(app, user_id, session_id))
    where = {"app_name": app, "user_id": user_id, "session_id": session_id}
    found = await _stop(client, deleted, grace)
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
    while found:
        await _forget(client, found, deleted)
        # What visibility had not listed yet.
        found = {run: False for run in await _stop(client, deleted, timedelta()) if run not in found}
    return deleted


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
            await _each(running, lambda run: _handle(client, run).terminate(REASON))
        else:
            await _each(running, lambda run: _handle(client, run).cancel())
            await _ended(client, running, grace)
            asked = True


async def _ended(client: Client, running: list[WorkflowRun], within: timedelta) -> None:
    async def ended(run: WorkflowRun) -> None:
        try:
            await _handle(client, run).result(follow_runs=False)
        except (WorkflowFailureError, RPCError):  # it ended otherwise, or is gone
            return

    waits = [asyncio.ensure_future(ended(run)) for run in running]
    try:
        await asyncio.wait(waits, timeout=within.total_seconds())
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _forget(client: Client, found: Iterable[WorkflowRun], deleted: DeletedSession) -> None:
    """Delete runs, the session's own last: as long as it is there, it is listed, and its deletion can be repeated."""
    runs = sorted(found, key=lambda run: (run.workflow_id == deleted.id, run))
    below = [run for run in runs if run.workflow_id != deleted.id]
    for group in (below, runs[len(below) :]):
        await _each(group, lambda run: _delete(client, run))
    deleted.workflows = sorted({*deleted.workflows, *(run.workflow_id for run in runs)})
    deleted.runs += len(runs)


async def _delete(client: Client, run: WorkflowRun) -> None:
    execution = WorkflowExecution(workflow_id=run.workflow_id, run_id=run.run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
    await client.workflow_service.delete_workflow_execution(request)


def _handle(client: Client, run: WorkflowRun) -> Any:
    return client.get_workflow_handle(run.workflow_id, run_id=run.run_id)


async def _each(items: Iterable[Any], work: Any) -> None:
    """Do something with each item, some at a time; what is gone already needs nothing."""
    bound = asyncio.Semaphore(AT_A_TIME)

    async def one(item: Any) -> None:
        async with bound:
            try:
                await work(item)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    await asyncio.gather(*(one(item) for item in items))


class Sessions:
    """The sessions of the namespace; `AgentClient.sessions`. Call it to list them, as `list` does."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal

    def list(
        self, *, agent: str | None = None, user_id: str | None = None, app: str | None = None
    ) -> AsyncIterator[SessionEntry]:
        """Yield the sessions in the namespace, latest start first. No worker has to run.

        They come from visibility, which may lag behind by a second.

        Args:
            agent: Only those of this agent.
            user_id: Only those of this user.
            app: Only those of this app.
        """
        return _list_sessions(self._temporal, agent=agent, user_id=user_id, app=app)

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
        return await _delete_session(
            self._temporal,
            app=app,
            user_id=user_id,
            session_id=session_id,
            artifacts=artifacts,
            memory=memory,
            grace=grace,
        )
