"""Find and answer pending calls in the whole namespace, without knowing a workflow.

They are read from visibility and memos, so no worker has to run. Both lag behind by a second at most.
"""

import asyncio
import builtins
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError

from waystation.client.invocation_handle import ClientContext, Invocation, closed_call_refusal, pending_calls
from waystation.client.search_attributes import AGENT, has_search_attributes
from waystation.core import (
    MAX_KEYWORD,
    SEARCH_AGENT,
    SEARCH_SESSION,
    SEARCH_STATUS,
    SEARCH_USER,
    WORKFLOW,
    Action,
    JsonObject,
    PendingCall,
    UnknownCall,
    WaystationError,
    digest,
    ids,
    is_among_people,
)
from waystation.history import is_not_found

AT_ONCE = 8
"""How many answers of `answer_all` are in flight at a time."""


PAGE_SIZE = 100
"""Invocations per request, each with all of its pending calls."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of pending calls."""

    calls: tuple[PendingCall, ...]
    next: str | None
    """The `page` of the next part; None at the end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one answer among many."""

    approval_id: str
    receipt: JsonObject | None = None
    """Present when the answer counts."""
    error: WaystationError | RPCError | None = None
    """Why it does not count, or why that is not known yet (`AnswerUnconfirmed`)."""


MAY_BE_OMITTED = ("args", "interim", "payload", "response_schema")
"""Fields of which a memo has only the size when they are large."""


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
        if filter.may_contain(execution, root) and not (at and at.has_passed(execution)):
            calls = pending_calls(await execution.memo(), execution.typed_search_attributes)
            yield execution, [call for call in calls if filter.matches(call, searchable=searchable, now=time.time())]


async def _root_of(client: Client, below: str) -> str | None:
    """Return the workflow at the top of a tree; None when the server does not know."""
    with suppress(RPCError):
        return (await client.get_workflow_handle(below).describe()).root_id
    return None


def _concerns(call: PendingCall, people: tuple[str, ...]) -> bool:
    """Whether an approver, given with all roles, may answer a call or has claimed it."""
    if call.claimed_by in people or call.policy is None:
        return True
    requesters = (call.requester, call.user_id) if call.policy.not_requester else ()
    if any(is_among_people(name, people) for name in (*call.approved_by, *requesters)):
        return False
    asked = call.policy.asked(call.level)
    return not asked or any(who in asked for who in people)


def _quotable(text: str) -> bool:
    """Whether a query can contain it unescaped."""
    return text.isprintable() and not set(text) & set("'\"\\")


class Approvals:
    """Pending calls of the namespace; `AgentClient.approvals`."""

    def __init__(self, client: ClientContext) -> None:
        self._client = client

    async def each(
        self,
        *,
        agent: str | None = None,
        tool: str | None = None,
        person: str | Iterable[str] | None = None,
        older_than: timedelta | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        below: str | None = None,
    ) -> AsyncIterator[PendingCall]:
        """Yield pending calls, latest start of the invocation first. Holds few in memory at a time.

        Args:
            agent: Only in invocations of this agent.
            tool: Only calls of this tool.
            person: Only calls that this person may answer, or has claimed: a subject as in a policy's `approvers`,
                with roles (`role:finance`) if there are any. Calls that anybody may answer are among them.
            older_than: Only calls that have waited for longer.
            user_id: Only those for whom the agent works.
            session_id: Only of this session.
            below: Only in what this invocation calls, or this session (by its workflow id) starts, at any depth.
        """
        wanted = ApprovalFilter.from_options(agent, tool, person, older_than, user_id, session_id, below)
        async for _, calls in find_pending_calls(self._client.temporal, wanted):
            for call in calls:
                yield call

    async def pending(self, *, below: str | None = None) -> builtins.list[PendingCall]:
        """Return all pending calls, oldest first.

        `below` names a session or an invocation: then only calls of what was started from it, at any depth. See `each`
        for more filters, and for long lists.
        """
        return sorted([call async for call in self.each(below=below)], key=lambda call: call.requested_at)

    async def get(self, approval_id: str) -> PendingCall:
        """Return one pending call, with all of its arguments.

        Raises:
            AlreadyAnswered: It has its answer.
            Expired: Its deadline has passed.
            UnknownCall: It was never pending, its invocation is over, or no call has that id.
        """
        invocation_id, call_id = _ids(approval_id)
        invocation = Invocation.from_id(self._client, invocation_id)
        try:
            posted = [call for call in await invocation.pending() if call.function_call_id == call_id]
            if posted and not any(_is_omitted(getattr(posted[0], name)) for name in MAY_BE_OMITTED):
                return posted[0]
            log = await invocation.log()
        except RPCError as error:
            raise _unknown(error, invocation_id) from None
        pending = [] if log.state.outcome.ended else log.state.pending()
        if call := next((call for call in pending if call.function_call_id == call_id), None):
            return call
        raise closed_call_refusal(log, call_id)

    async def answer(self, approval_id: str, action: Action, **fields: Any) -> JsonObject:
        """Answer one call; see `Invocation.answer` for `fields`.

        Raises:
            AnswerRefused: It does not count; the class says why.
            AnswerUnconfirmed: No worker took it in time. It may still be applied later.
        """
        invocation_id, call_id = _ids(approval_id)
        try:
            return await Invocation.from_id(self._client, invocation_id).answer(action, call_id, **fields)
        except RPCError as error:
            raise _unknown(error, invocation_id) from None

    async def approve(self, approval_id: str, **fields: Any) -> JsonObject:
        """Approve a call; see `answer`."""
        return await self.answer(approval_id, "approve", **fields)

    async def reject(self, approval_id: str, **fields: Any) -> JsonObject:
        """Reject a call; see `answer`."""
        return await self.answer(approval_id, "reject", **fields)

    async def edit(self, approval_id: str, args: JsonObject, **fields: Any) -> JsonObject:
        """Have a call run with other arguments; see `answer`."""
        return await self.answer(approval_id, "edit", args=args, **fields)

    async def respond(self, approval_id: str, response: JsonObject, **fields: Any) -> JsonObject:
        """Give a long-running call its response; see `answer`."""
        return await self.answer(approval_id, "respond", response=response, **fields)

    async def progress(self, approval_id: str, response: JsonObject, **fields: Any) -> JsonObject:
        """Report the progress of a long-running call; see `answer`."""
        return await self.answer(approval_id, "progress", response=response, **fields)

    async def claim(self, approval_id: str, **fields: Any) -> JsonObject:
        """Claim a call. Nobody else can answer it until it is released; see `answer`."""
        return await self.answer(approval_id, "claim", **fields)

    async def release(self, approval_id: str, **fields: Any) -> JsonObject:
        """Release a claimed call; see `answer`."""
        return await self.answer(approval_id, "release", **fields)

    async def view(self, approval_id: str, **fields: Any) -> JsonObject:
        """Record that an approver has viewed a call; see `answer`."""
        return await self.answer(approval_id, "view", **fields)

    async def waive(self, approval_id: str, **fields: Any) -> JsonObject:
        """As an operator, run a call without the approval that its policy requires; see `answer`."""
        return await self.answer(approval_id, "waive", **fields)

    async def cancel(self, approval_id: str, **fields: Any) -> JsonObject:
        """As an operator, close a call; see `answer`."""
        return await self.answer(approval_id, "cancel", **fields)

    async def answer_all(
        self,
        calls: Iterable[str | PendingCall] | AsyncIterable[PendingCall],
        action: Action,
        *,
        at_once: int = AT_ONCE,
        **fields: Any,
    ) -> AsyncGenerator[Outcome]:
        """Give many calls the same answer, and yield each outcome as soon as it is known.

        May be repeated, also after an interruption: a call that has its answer keeps it, and the outcome says so.

        Args:
            calls: Approval ids; or calls as `each` and `list` give them, whose answers then hold only for what they
                showed.
            action: What to do with them.
            at_once: How many answers are under way at a time.
            fields: As for `answer`.
        """
        running: set[asyncio.Task[Outcome]] = set()
        try:
            async for call in _one_by_one(calls):
                if len(running) >= at_once:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        yield task.result()
                running.add(asyncio.create_task(self._outcome(call, action, fields)))
            for coming in asyncio.as_completed(running):
                yield await coming
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _outcome(self, call: str | PendingCall, action: Action, fields: JsonObject) -> Outcome:
        given = dict(fields)
        if isinstance(call, PendingCall):
            given.setdefault("digest", call.digest)
        if action == "progress":  # the only one of which a second would count
            said = {name: repr(value) for name, value in fields.items() if name not in ("token", "confirm_within")}
            given.setdefault("answer_id", digest([action, said]))
        approval_id = call if isinstance(call, str) else call.approval_id
        try:
            return Outcome(approval_id, receipt=await self.answer(approval_id, action, **given))
        except (WaystationError, RPCError) as error:
            return Outcome(approval_id, error=error)

    async def list(self, *, limit: int = PAGE_SIZE, page: str | None = None, **filters: Any) -> Page:
        """Return one page of pending calls; see `each` for their order and for `filters`.

        Args:
            limit: How many calls. There may be a few more: calls of one invocation stay on one page.
            page: The `next` of the previous page.
            filters: As for `each`.

        Raises:
            ValueError: `page` is not from such a list.
        """
        calls: list[PendingCall] = []
        at = ListPosition.parse(page) if page else None
        async for execution, meant in find_pending_calls(
            self._client.temporal, ApprovalFilter.from_options(**filters), at
        ):
            if len(calls) >= limit:
                return Page(tuple(calls), at.format() if at else None)
            at = ListPosition.after(execution, at)
            calls.extend(meant)
        return Page(tuple(calls), None)


def _is_omitted(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"omitted_bytes"}


def _ids(approval_id: str) -> tuple[str, str]:
    try:
        invocation_id, call_id = ids.approved_call(approval_id)
    except ValueError as error:
        raise UnknownCall(str(error)) from None
    return invocation_id, ids.requesting_call(call_id)


def _unknown(error: RPCError, invocation_id: str) -> Exception:
    """Return what it means that the server does not know an invocation; any other error is returned unchanged."""
    if is_not_found(error):
        return UnknownCall(f"There is no invocation {invocation_id!r}.")
    return error


async def _one_by_one(
    calls: Iterable[str | PendingCall] | AsyncIterable[PendingCall],
) -> AsyncIterator[str | PendingCall]:
    if isinstance(calls, AsyncIterable):
        async for call in calls:
            yield call
        return
    for given in {each if isinstance(each, str) else each.approval_id: each for each in calls}.values():
        yield given
