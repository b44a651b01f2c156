"""Sessions as visibility lists them. No worker is asked, and none has to run."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from urllib.parse import unquote

from temporalio.client import Client, WorkflowExecutionStatus

from waystation.core import ids
from waystation.core.payload import JsonObject
from waystation.core.wire import MEMO_SESSION, SESSION_WORKFLOW

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
    """Empty while no worker has taken the session up."""
    status: str
    """`open`, `waiting` for a person, `closed`; or how its workflow ended."""
    started_at: datetime
    """When its present run began; it continues in a new one from time to time."""

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        return {**asdict(self), "started_at": self.started_at.isoformat()}


async def list_sessions(
    client: Client, *, agent: str | None = None, user_id: str | None = None, app: str | None = None
) -> AsyncIterator[SessionEntry]:
    """Yield sessions, those that began last first; see `AgentClient.sessions`."""
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
