"""Find pending calls: which of them match, and how far a list of them has been read."""

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client, WorkflowExecution
from temporalio.common import TypedSearchAttributes
from temporalio.service import RPCError

from waystation.client.search_attributes import AGENT, PENDING, has_search_attributes
from waystation.core.answer import PendingCall
from waystation.core.wire import (
    MAX_KEYWORD,
    MEMO_PENDING,
    SEARCH_AGENT,
    SEARCH_SESSION,
    SEARCH_STATUS,
    SEARCH_USER,
    WORKFLOW,
)

PAGE_SIZE = 100
"""Invocations per request, each with all of its pending calls."""


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """Conditions that a pending call must meet."""

    agent: str | None = None
    tool: str | None = None
    person: tuple[str, ...] = ()
    older_than: timedelta | None = None
    user_id: str | None = None
    session_id: str | None = None
    below: str | None = None

    @classmethod
    def from_options(
        cls,
        agent: str | None = None,
        tool: str | None = None,
        person: str | Iterable[str] | None = None,
        older_than: timedelta | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        below: str | None = None,
    ) -> "ApprovalFilter":
        """Return a filter; see `Approvals.each` for the options."""
        people = (person,) if isinstance(person, str) else tuple(person or ())
        return cls(agent, tool, people, older_than, user_id, session_id, below)

    def query(self, *, searchable: bool, before: datetime | None) -> str:
        """Return the visibility query. `matches` checks the conditions that a query cannot express."""
        parts = [f"WorkflowType = '{WORKFLOW}'", "ExecutionStatus = 'Running'"]
        if searchable:
            # What began before the attributes existed has none.
            parts.append(f"({SEARCH_STATUS} = 'waiting' OR {SEARCH_AGENT} IS NULL)")
            named = {SEARCH_AGENT: self.agent, SEARCH_USER: self.user_id, SEARCH_SESSION: self.session_id}
            parts += [
                f"({name} = '{value[:MAX_KEYWORD]}' OR {SEARCH_AGENT} IS NULL)"
                for name, value in named.items()
                if value and _quotable(value)
            ]
        if self.below is not None and _quotable(self.below):
            parts.append(f"WorkflowId STARTS_WITH '{self.below}/'")
        if before is not None:
            parts.append(f"StartTime <= '{before.isoformat()}'")
        return " AND ".join(parts)

    def may_contain(self, execution: WorkflowExecution, root: str | None) -> bool:
        """Whether an invocation may contain matching calls; `root` is the topmost workflow above `below`."""
        if self.below is not None:
            # Anybody may start a workflow under an id that looks like one of the tree.
            if not execution.id.startswith(f"{self.below}/"):
                return False
            if root is not None and execution.root_id not in (None, "", root):
                return False
        started_as = execution.typed_search_attributes.get(AGENT)
        return self.agent is None or started_as is None or started_as == self.agent[:MAX_KEYWORD]

    def matches(self, call: PendingCall, *, searchable: bool, now: float) -> bool:
        """Whether a call meets the conditions."""
        return (
            (self.agent is None or searchable or call.agent == self.agent)
            and self.tool in (None, call.tool)
            and self.user_id in (None, call.user_id)
            and self.session_id in (None, call.session_id)
            and (self.older_than is None or call.requested_at <= now - self.older_than.total_seconds())
            and (not self.person or _concerns(call, self.person))
        )


@dataclass(frozen=True, slots=True)
class ListPosition:
    """How far a list has been read. The server lists the latest start first."""

    before: datetime
    runs: tuple[str, ...]
    """The runs that started at that moment and were read."""

    @classmethod
    def after(cls, execution: WorkflowExecution, at: "ListPosition | None") -> "ListPosition":
        """Return the position after an invocation."""
        same = at.runs if at and at.before == _rounded(execution.start_time) else ()
        return cls(_rounded(execution.start_time), (*same, execution.run_id))

    @classmethod
    def parse(cls, text: str) -> "ListPosition":
        """Parse the output of `format`."""
        moment, *runs = text.split("|")
        try:
            return cls(datetime.fromisoformat(moment).astimezone(UTC), tuple(runs))
        except ValueError:
            raise ValueError(f"{text!r} is no place in a list; it is the `next` of the part before.") from None

    def format(self) -> str:
        """Return the position as text."""
        return "|".join((self.before.isoformat(), *self.runs))

    def has_passed(self, execution: WorkflowExecution) -> bool:
        """Whether an invocation was read already."""
        return _rounded(execution.start_time) > self.before or execution.run_id in self.runs


def _rounded(moment: datetime) -> datetime:
    """Round a time up to the next microsecond: the server counts in smaller steps than Python."""
    return moment.astimezone(UTC) + timedelta(microseconds=1)


async def find_pending_calls(
    client: Client, filter: ApprovalFilter, at: "ListPosition | None" = None
) -> AsyncIterator[tuple[WorkflowExecution, list[PendingCall]]]:
    """Yield invocations after a position, latest start first, each with its matching calls."""
    searchable = await has_search_attributes(client, tell=False)
    root = await _root_of(client, filter.below) if filter.below else None
    query = filter.query(searchable=searchable, before=at.before if at else None)
    async for execution in client.list_workflows(query, page_size=PAGE_SIZE):
        if (at and at.has_passed(execution)) or not filter.may_contain(execution, root):
            continue
        calls = pending_calls(await execution.memo(), execution.typed_search_attributes)
        now = time.time()
        yield execution, [call for call in calls if filter.matches(call, searchable=searchable, now=now)]


async def _root_of(client: Client, below: str) -> str | None:
    """Return the workflow at the top of a tree; None when the server does not know."""
    with suppress(RPCError):
        return (await client.get_workflow_handle(below).describe()).root_id
    return None


def _concerns(call: PendingCall, people: tuple[str, ...]) -> bool:
    """Whether an approver, given with all roles, may answer a call or has claimed it."""
    if call.claimed_by in people:
        return True
    if call.policy is None:
        return True
    if any(who in people for who in call.approved_by):
        return False
    if call.policy.not_requester and (call.requester or call.user_id) in people:
        return False
    asked = call.policy.asked(call.level)
    return not asked or any(who in asked for who in people)


def _quotable(text: str) -> bool:
    """Whether a query can contain it unescaped."""
    return text.isprintable() and not set(text) & set("'\"\\")


def pending_calls(memo: Mapping[str, Any], attributes: TypedSearchAttributes) -> list[PendingCall]:
    """Return the calls in a memo; where search attributes exist, only those that they still list."""
    described = [PendingCall.model_validate(call) for call in memo.get(MEMO_PENDING) or ()]
    if attributes.get(AGENT) is None:
        return described
    listed = attributes.get(PENDING) or ()
    return [call for call in described if call.function_call_id in listed]
