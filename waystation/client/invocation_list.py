"""List invocations, and find them by the beginning of their ID. None of this needs a running worker."""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from waystation.client.approvals import is_quotable
from waystation.client.invocation_description import WAITING, name_status, parse_pending_calls
from waystation.client.search_attributes import AGENT, TENANT, USER
from waystation.core.approval import PendingCall
from waystation.core.contract import (
    HELD,
    MAX_KEYWORD,
    MAX_MEMO_CALLS,
    MEMO_HELD,
    RUNNING,
    SEARCH_AGENT,
    SEARCH_STATUS,
    SEARCH_TENANT,
    SEARCH_USER,
    SESSION_WORKFLOW,
    UNKNOWN,
    WORKFLOW,
)
from waystation.core.payload import JsonObject
from waystation.history import read_memo

STATUSES = {
    "open": "ExecutionStatus = 'Running'",
    RUNNING: f"ExecutionStatus = 'Running' AND ({SEARCH_STATUS} IS NULL OR {SEARCH_STATUS} = '{RUNNING}')",
    WAITING: f"ExecutionStatus = 'Running' AND {SEARCH_STATUS} = '{WAITING}'",
    HELD: f"ExecutionStatus = 'Running' AND {SEARCH_STATUS} STARTS_WITH '{HELD}'",
    UNKNOWN: f"ExecutionStatus = 'Running' AND {SEARCH_STATUS} = '{UNKNOWN}'",
    "completed": "ExecutionStatus = 'Completed'",
    "failed": "ExecutionStatus = 'Failed'",
    "canceled": "ExecutionStatus = 'Canceled'",
    "terminated": "ExecutionStatus = 'Terminated'",
    "timed_out": "ExecutionStatus = 'TimedOut'",
}
"""The statuses to filter by, each with its visibility query. `open` includes running, waiting and held invocations."""
_CALLED = "/fc-"
"""Precedes the function call ID in the ID of a called agent's invocation."""
_LIST_ONLY = ("run_id", "called_pending")
"""Fields of an entry that are not part of its JSON."""
NEWEST = 500
"""Number of latest invocations and sessions among which similar IDs are searched."""
MAX_SIMILAR = 5
"""Maximum number of IDs to suggest."""


@dataclass(frozen=True, slots=True)
class InvocationEntry:
    """One invocation in a list of invocations."""

    id: str
    agent: str | None
    """Name of the root agent, or None if the namespace has no search attributes. The same applies to `user_id`."""
    user_id: str | None
    tenant: str | None
    status: str
    """One of `STATUSES`, except `open`. An invocation that waits only inside a called agent is `running` until
    `fold_called` has found the called agent."""
    started_at: datetime
    """Start time of the current run. A long invocation may have started earlier, because it continues as new."""
    ended_at: datetime | None
    pending: tuple[PendingCall, ...] = ()
    """The calls that an open invocation waits for. Long arguments are left out."""
    holds: tuple[JsonObject, ...] = ()
    """Why an open invocation is held."""
    called_pending: tuple[PendingCall, ...] = ()
    """The calls that the agents below an open invocation wait for; see `fold_called`."""
    parent: str | None = None
    """ID of the workflow that started the invocation: a session, the caller of an agent, or a workflow of yours."""
    run_id: str = ""
    """ID of the current run."""

    @property
    def may_have_more(self) -> bool:
        """Whether there may be more pending or held calls. The client's `approvals` and `held` return all."""
        return max(len(self.pending), len(self.holds)) >= MAX_MEMO_CALLS

    @property
    def is_called(self) -> bool:
        """Whether another agent called this agent."""
        return _CALLED in self.id.removeprefix(self.parent or self.id)

    @property
    def root_id(self) -> str:
        """The ID of the invocation at the top: for a called agent, that of the first caller."""
        return ([self.id, *_list_callers(self)])[-1]

    def duration_s(self, now: float) -> float:
        """Return how long the current run took or, if the invocation is open, how long it has been running."""
        return max(0.0, (self.ended_at.timestamp() if self.ended_at else now) - self.started_at.timestamp())

    def to_json(self) -> JsonObject:
        """Return the entry as JSON. Pending calls are approval IDs."""
        fields = {name: value for name, value in asdict(self).items() if name not in _LIST_ONLY}
        return {
            **fields,
            "started_at": self.started_at.isoformat(),
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
            "pending": [call.approval_id for call in self.pending],
            "may_have_more": self.may_have_more,
        }


class Invocations:
    """The invocations in the namespace, available as `AgentClient.invocations`."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal

    async def list(
        self,
        *,
        agent: str | None = None,
        user_id: str | None = None,
        tenant: str | None = None,
        status: str | None = None,
        search: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        parent: str | None = None,
        ids: Collection[str] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[InvocationEntry]:
        """Yield invocations, most recently started first, open ones before the others.

        Invocations are read from visibility, which may lag by a second.

        Args:
            agent: Only invocations of this root agent.
            user_id: Only invocations of this user.
            tenant: Only invocations of this tenant or, if empty, without a tenant.
            status: Only invocations with this status, one of `STATUSES`.
            search: Words. Each is the beginning of an ID, an agent or a user, or one of `STATUSES`.
            since: Only invocations whose current run started at or after this time.
            until: Only invocations whose current run started before this time.
            parent: Only invocations that the workflow with this ID started.
            ids: Only invocations with one of these IDs.
            limit: Maximum number of invocations.

        Raises:
            ValueError: A filter contains a character that a query cannot contain, or there is no such status.
            RPCError: The namespace lacks the search attributes that a filter needs.
        """
        names = {SEARCH_AGENT: agent, SEARCH_USER: user_id, SEARCH_TENANT: tenant, "ParentWorkflowId": parent}
        parts = [f"WorkflowType = '{WORKFLOW}'", "ExecutionStatus != 'ContinuedAsNew'", *_match_names(names)]
        if status is not None:
            if status not in STATUSES:
                raise ValueError(f"{status!r} is not a status. Use one of: {', '.join(STATUSES)}.")
            parts.append(STATUSES[status])
        if ids is not None:
            quoted = ", ".join(f"'{_check_quotable(id)}'" for id in ids)
            parts.append(f"WorkflowId IN ({quoted})")
        parts += map(_match_word, search.split())
        bounds = ((">=", since), ("<", until))
        parts += [f"StartTime {sign} '{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}'" for sign, time in bounds if time]
        async for execution in self._temporal.list_workflows(" AND ".join(parts), limit=limit):
            yield await read_entry(execution)

    async def list_waiting_called(
        self, *, user_id: str | None = None, tenant: str | None = None, limit: int | None = None
    ) -> AsyncIterator[InvocationEntry]:
        """Yield the called agents that have pending calls, most recently started first. See `list` for the filters.

        Filters for the agent or the ID of an invocation do not match the agents that it called, so read these
        separately and pass them to `fold_called`.

        Raises:
            ValueError: A filter contains a character that a query cannot contain.
            RPCError: The namespace lacks the search attributes.
        """
        conditions = _match_names({SEARCH_USER: user_id, SEARCH_TENANT: tenant})
        waiting = f"({SEARCH_STATUS} = '{WAITING}' OR {SEARCH_STATUS} STARTS_WITH '{HELD}')"
        parts = [f"WorkflowType = '{WORKFLOW}'", "ExecutionStatus = 'Running'", waiting, *conditions]
        async for execution in self._temporal.list_workflows(" AND ".join(parts), limit=limit):
            entry = await read_entry(execution)
            if entry.is_called and entry.pending:
                yield entry

    async def find(self, prefix: str, *, limit: int = MAX_SIMILAR) -> tuple[str, ...]:
        """Return the workflow IDs of invocations and sessions that begin with `prefix`, latest first."""
        if not prefix or not is_quotable(prefix):
            return ()
        return tuple([id async for id in self._ids(f" AND WorkflowId STARTS_WITH '{prefix}'", limit)])

    async def suggest(self, id: str) -> tuple[str, ...]:
        """Return those of the latest workflow IDs of invocations and sessions that are similar to `id`, best first."""
        latest = [other async for other in self._ids("", NEWEST)]
        return tuple(get_close_matches(id, latest, n=MAX_SIMILAR))

    async def _ids(self, condition: str, limit: int) -> AsyncIterator[str]:
        types = f"WorkflowType IN ('{WORKFLOW}', '{SESSION_WORKFLOW}')"
        query = f"{types} AND ExecutionStatus != 'ContinuedAsNew'{condition}"
        seen = set[str]()
        async for execution in self._temporal.list_workflows(query, limit=limit):
            if execution.id not in seen:  # a reset leaves several runs
                seen.add(execution.id)
                yield execution.id


def fold_called(
    entries: Iterable[InvocationEntry], *, others: Iterable[InvocationEntry] = (), keep: bool = False
) -> "list[InvocationEntry]":
    """Return each invocation once, with the pending calls of the agents that it called, directly or indirectly.

    A running invocation that waits inside a called agent becomes `waiting`.

    Args:
        entries: The invocations. If a reset has left several runs, the first one counts.
        others: Called agents whose pending calls count, too, but which are not returned.
        keep: Whether to return the called agents among `entries`, too.
    """
    latest: dict[str, InvocationEntry] = {}
    for entry in entries:
        latest.setdefault(entry.id, entry)
    every = dict(latest)
    for entry in others:
        every.setdefault(entry.id, entry)
    below: dict[str, tuple[PendingCall, ...]] = {}
    for entry in every.values():
        for caller in _list_callers(entry) if entry.pending else ():
            below[caller] = (*below.get(caller, ()), *entry.pending)
            if caller in every and not every[caller].is_called:
                break
    return [
        replace(entry, called_pending=below[entry.id], status=WAITING if entry.status == RUNNING else entry.status)
        if entry.id in below
        else entry
        for entry in latest.values()
        if keep or not entry.is_called
    ]


def _list_callers(entry: InvocationEntry) -> list[str]:
    """Return the IDs of the invocations above a called agent, nearest first. Empty for other invocations."""
    callers = list[str]()
    caller = entry.parent if entry.is_called else None
    while caller:
        callers.append(caller)
        # The ID of a called agent's invocation is that of its caller, followed by the function call ID.
        caller = caller.rpartition(_CALLED)[0]
    return callers


def _match_names(names: Mapping[str, str | None]) -> Iterator[str]:
    """Yield conditions for names. An empty tenant stands for invocations without a tenant."""
    for name, value in names.items():
        if name == SEARCH_TENANT and value == "":
            # Invocations without any search attributes may belong to a tenant.
            yield f"{SEARCH_TENANT} IS NULL AND {SEARCH_AGENT} IS NOT NULL"
        elif value is not None:
            yield f"{name} = '{_check_quotable(value)[:MAX_KEYWORD]}'"


def _match_word(word: str) -> str:
    """Return a condition for a word of a search."""
    names = "WorkflowId", SEARCH_AGENT, SEARCH_USER
    conditions = [f"{name} STARTS_WITH '{_check_quotable(word)[:MAX_KEYWORD]}'" for name in names]
    if status := STATUSES.get(word.lower()):
        conditions.append(f"({status})")
    return f"({' OR '.join(conditions)})"


def _check_quotable(value: str) -> str:
    if not is_quotable(value):
        raise ValueError(f"{value!r} contains a quotation mark, a backslash or an unprintable character.")
    return value


async def read_entry(execution: WorkflowExecution) -> InvocationEntry:
    """Return the entry for an execution from a list or from its description."""
    attributes = execution.typed_search_attributes
    is_open = execution.status is WorkflowExecutionStatus.RUNNING
    memo = await read_memo(execution) if is_open else {}
    return InvocationEntry(
        id=execution.id,
        agent=attributes.get(AGENT),
        user_id=attributes.get(USER),
        tenant=attributes.get(TENANT),
        status=name_status(execution, memo),
        started_at=execution.start_time,
        ended_at=execution.close_time,
        pending=tuple(parse_pending_calls(execution, memo)),
        holds=tuple(memo.get(MEMO_HELD) or ()),
        parent=execution.parent_id or None,
        run_id=execution.run_id,
    )
