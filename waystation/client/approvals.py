"""Find and answer pending calls in the whole namespace.

Pending calls are read from visibility and workflow memos, which does not require a running worker. Visibility may lag
by a second.
"""

import asyncio
import builtins
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from waystation.client.invocation_handle import (
    ClientContext,
    Invocation,
    explain_closed_call,
    explain_unread,
    read_pending_calls,
)
from waystation.client.search_attributes import AGENT, ANY_TENANT
from waystation.core import ids
from waystation.core.actions import Action
from waystation.core.approval import PendingCall, Verified, is_among_people
from waystation.core.contract import (
    HELD,
    MAX_KEYWORD,
    SEARCH_AGENT,
    SEARCH_SESSION,
    SEARCH_STATUS,
    SEARCH_TENANT,
    SEARCH_USER,
    UNKNOWN,
    WORKFLOW,
)
from waystation.core.errors import UnknownCall, WaystationError
from waystation.core.payload import JsonObject, digest
from waystation.history import is_not_found

AT_ONCE = 8
"""Default number of answers that `answer_all` sends concurrently."""
Asked = str | Iterable[str] | Verified
"""Selects the calls of a person: a subject, names that include roles, or the sender of a token (`Bearer.who`)."""
PAGE_SIZE = 100
"""Number of invocations to fetch per request to the server, and default number of calls on a `Page`."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of pending calls."""

    calls: tuple[PendingCall, ...]
    next: str | None
    """The `page` argument that fetches the next page, or None on the last page."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one of the answers that `answer_all` sent."""

    approval_id: str
    receipt: JsonObject | None = None
    """The receipt, if the answer was accepted."""
    error: WaystationError | RPCError | None = None
    """Why the answer was not accepted. After `AnswerUnconfirmed`, the answer may still be accepted later."""


MAY_BE_OMITTED = ("args", "interim", "payload", "response_schema")
"""Fields of a pending call that a memo contains only as their size if they are large."""


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
    tenant: str | None = None
    machines: bool | None = None
    """Whether a machine answers the calls, or people do. None selects both."""
    unknown: bool = False
    """Whether to find the calls whose outcome is unknown, about which operators are asked, instead of all others."""
    verified: Verified | None = None
    """The person in `person`, if an identity provider has confirmed the identity."""

    @classmethod
    def from_options(
        cls,
        agent: str | None = None,
        tool: str | None = None,
        person: Asked | None = None,
        older_than: timedelta | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        below: str | None = None,
        tenant: str | None = None,
        machines: bool | None = False,
        unknown: bool = False,
    ) -> "ApprovalFilter":
        """Create a filter from options; see `Approvals.each` for their meaning."""
        who = person if isinstance(person, Verified) else None
        named = person.names if isinstance(person, Verified) else () if person is None else person
        people = (named,) if isinstance(named, str) else tuple(named)
        return cls(agent, tool, people, older_than, user_id, session_id, below, tenant, machines, unknown, who)

    def query(self, *, searchable: bool, before: datetime | None) -> str:
        """Return the visibility query. `may_contain` and `matches` check conditions that the query does not express."""
        parts = [f"WorkflowType = '{WORKFLOW}'", "ExecutionStatus = 'Running'"]
        if searchable:
            # Also include invocations that started before the search attributes existed and therefore lack them.
            # A held invocation may have pending calls, too.
            statuses = f"{SEARCH_STATUS} = 'waiting' OR {SEARCH_STATUS} STARTS_WITH '{HELD}'"
            statuses = f"{SEARCH_STATUS} = '{UNKNOWN}'" if self.unknown else statuses
            parts.append(f"({statuses} OR {SEARCH_AGENT} IS NULL)")
            keywords = {
                SEARCH_AGENT: self.agent,
                SEARCH_USER: self.user_id,
                SEARCH_SESSION: self.session_id,
                SEARCH_TENANT: self.tenant,
            }
            parts += [
                f"({name} = '{value[:MAX_KEYWORD]}' OR {SEARCH_AGENT} IS NULL)"
                for name, value in keywords.items()
                if value and is_quotable(value)
            ]
        if self.below is not None and is_quotable(self.below):
            parts.append(f"WorkflowId STARTS_WITH '{self.below}/'")
        if before is not None:
            parts.append(f"StartTime <= '{before.isoformat()}'")
        return " AND ".join(parts)

    def may_contain(self, execution: WorkflowExecution, root: str | None) -> bool:
        """Return whether an invocation may contain matching calls. `root` is the root workflow of `below`."""
        if self.below is not None:
            # Any client can start a workflow with an ID that looks like it belongs to this tree.
            if not execution.id.startswith(f"{self.below}/"):
                return False
            if root is not None and execution.root_id not in (None, "", root):
                return False
        agent = execution.typed_search_attributes.get(AGENT)
        return self.agent is None or agent is None or agent == self.agent[:MAX_KEYWORD]

    def matches(self, call: PendingCall, *, searchable: bool, now: float) -> bool:
        """Return whether a call in an invocation that the query and `may_contain` accepted meets all conditions."""
        return (
            (call.kind == UNKNOWN) is self.unknown
            and (self.agent is None or searchable or call.agent == self.agent)
            and self.tool in (None, call.tool)
            and self.user_id in (None, call.user_id)
            and self.session_id in (None, call.session_id)
            and self.tenant in (None, call.tenant)
            and (self.unknown or self.machines in (None, call.machine is not None))
            and (self.older_than is None or call.requested_at <= now - self.older_than.total_seconds())
            and (self.verified is None or self.verified.may_access(call.tenant))
            and (not self.person or _is_relevant(call, self.person))
        )


@dataclass(frozen=True, slots=True)
class ListPosition:
    """A position in the server's list of invocations, which is sorted by start time, latest first."""

    before: datetime
    runs: tuple[str, ...]
    """IDs of the runs that started at the time `before` and have already been read."""

    @classmethod
    def after(cls, execution: WorkflowExecution, at: "ListPosition | None") -> "ListPosition":
        """Return the position that follows an invocation."""
        start = _round_up(execution.start_time)
        return cls(start, (*(at.runs if at and at.before == start else ()), execution.run_id))

    @classmethod
    def parse(cls, text: str) -> "ListPosition":
        """Parse a position from the output of `format`."""
        time, *runs = text.split("|")
        try:
            return cls(datetime.fromisoformat(time).astimezone(UTC), tuple(runs))
        except ValueError:
            raise ValueError(f"{text!r} is not a page of this list. Pass `next` from the previous page.") from None

    def format(self) -> str:
        """Format the position as text."""
        return "|".join((self.before.isoformat(), *self.runs))

    def has_passed(self, execution: WorkflowExecution) -> bool:
        """Return whether an invocation has already been read."""
        return _round_up(execution.start_time) > self.before or execution.run_id in self.runs


def _round_up(time: datetime) -> datetime:
    """Round a time up to the next microsecond, because the server's timestamps are more precise than Python's."""
    return time.astimezone(UTC) + timedelta(microseconds=1)


async def find_pending_calls(
    client: ClientContext, filter: ApprovalFilter, at: "ListPosition | None" = None
) -> AsyncIterator[tuple[WorkflowExecution, list[PendingCall]]]:
    """Yield invocations after position `at`, most recently started first, each with its matching calls, if any."""
    searchable = bool(await client.searchable(ANY_TENANT))
    root = await _find_root(client.temporal, filter.below) if filter.below else None
    before = at.before if at else None
    executions = client.temporal.list_workflows(filter.query(searchable=searchable, before=before), page_size=PAGE_SIZE)
    try:
        await executions.fetch_next_page()
    except RPCError as error:
        is_refused = searchable and error.status is RPCStatusCode.INVALID_ARGUMENT
        if not is_refused or await client.searchable(ANY_TENANT, again=True):
            raise
        searchable = False  # the search attributes have disappeared since they were last checked
        executions = client.temporal.list_workflows(filter.query(searchable=False, before=before), page_size=PAGE_SIZE)
    async for execution in executions:
        if filter.may_contain(execution, root) and not (at and at.has_passed(execution)):
            calls = await read_pending_calls(client, execution)
            yield execution, [call for call in calls if filter.matches(call, searchable=searchable, now=time.time())]


async def _find_root(client: Client, below: str) -> str | None:
    """Return the ID of the root workflow of `below`, or None if the server cannot describe `below`."""
    with suppress(RPCError):
        return (await client.get_workflow_handle(below).describe()).root_id
    return None


def _is_relevant(call: PendingCall, people: tuple[str, ...]) -> bool:
    """Return whether a person may answer a call or has claimed it. `people` are the person's name and roles."""
    if call.claimed_by in people or call.policy is None:
        return True
    excluded = (call.requesters or (call.requester, call.user_id)) if call.policy.not_requester else ()
    if any(is_among_people(name, people) for name in (*call.approved_by, *excluded)):
        return False
    asked = call.policy.asked(call.level)
    return not asked or any(who in asked for who in people)


def is_quotable(text: str) -> bool:
    """Return whether a query can contain this text without escaping."""
    return text.isprintable() and not set(text) & set("'\"\\")


class Approvals:
    """Pending calls in the whole namespace, available as `AgentClient.approvals`."""

    def __init__(self, client: ClientContext) -> None:
        self._client = client

    async def each(
        self,
        *,
        agent: str | None = None,
        tool: str | None = None,
        person: Asked | None = None,
        older_than: timedelta | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        below: str | None = None,
        tenant: str | None = None,
        machines: bool | None = False,
        unknown: bool = False,
    ) -> AsyncIterator[PendingCall]:
        """Yield pending calls, those of the most recently started invocation first.

        Invocations are fetched in batches of about a hundred.

        Args:
            agent: Only calls in invocations of this agent.
            tool: Only calls of this tool.
            person: Only calls that this person may answer or has claimed, including calls that anyone may answer. Pass
                a subject as in a policy's `approvers`, or several names to include roles (`role:finance`). With
                `Bearer.who`, only calls of the tenant in the person's token are yielded.
            older_than: Only calls that have been waiting longer than this.
            user_id: Only calls in this user's invocations.
            session_id: Only calls in this session.
            below: Only calls in the tree below this invocation or session (a workflow ID), at any depth.
            tenant: Only calls in this tenant's invocations.
            machines: Only calls that a machine answers, or None for those and the calls of people.
            unknown: Yield the calls whose outcome is unknown, about which operators are asked, instead of all others.
        """
        people = ApprovalFilter.from_options(agent, tool, person, older_than, user_id, session_id, below, tenant)
        filter = replace(people, machines=machines, unknown=unknown)
        async for _, calls in find_pending_calls(self._client, filter):
            for call in calls:
                yield call

    async def pending(
        self,
        *,
        below: str | None = None,
        user_id: str | None = None,
        tenant: str | None = None,
        machines: bool | None = False,
        person: Asked | None = None,
    ) -> builtins.list[PendingCall]:
        """Return all pending calls, oldest first.

        See `each` for the filters. Use `each` for more filters or if the list may be long.
        """
        filters: dict[str, Any] = {"user_id": user_id, "tenant": tenant, "machines": machines, "person": person}
        calls = [call async for call in self.each(below=below, **filters)]
        return sorted(calls, key=lambda call: call.requested_at)

    async def get(self, approval_id: str) -> PendingCall:
        """Return one pending call, with its complete arguments.

        Raises:
            AlreadyAnswered: The call has already been answered.
            Expired: The call's deadline has passed.
            UnknownCall: The call does not exist, was never pending, or its invocation has ended.
            StoreFailed: The arguments are large, and the client's store does not contain them.
        """
        invocation_id, function_call_id = _parse_approval_id(approval_id)
        invocation = Invocation.from_id(self._client, invocation_id)
        try:
            matches = [call for call in await invocation.pending() if call.function_call_id == function_call_id]
            if matches and not any(_is_omitted(getattr(matches[0], name)) for name in MAY_BE_OMITTED):
                return matches[0]
            log = await invocation.log()
        except RPCError as error:
            raise _translate_error(error, invocation_id) from None
        pending = [] if log.state.outcome.ended else log.state.pending()
        if call := next((call for call in pending if call.function_call_id == function_call_id), None):
            if unread := explain_unread(self._client, call, matches):
                raise unread
            return call
        raise explain_closed_call(log, function_call_id)

    async def answer(self, approval_id: str, action: Action, **fields: Any) -> JsonObject:
        """Answer one call; see `Invocation.answer` for `fields`.

        Raises:
            AnswerRefused: The answer was not accepted; the subclass gives the reason.
            AnswerUnconfirmed: No worker confirmed the answer in time. It may still be accepted later.
        """
        invocation_id, function_call_id = _parse_approval_id(approval_id)
        try:
            return await Invocation.from_id(self._client, invocation_id).answer(action, function_call_id, **fields)
        except RPCError as error:
            raise _translate_error(error, invocation_id) from None

    async def approve(self, approval_id: str, **fields: Any) -> JsonObject:
        """Approve a call; see `answer`."""
        return await self.answer(approval_id, "approve", **fields)

    async def reject(self, approval_id: str, **fields: Any) -> JsonObject:
        """Reject a call; see `answer`."""
        return await self.answer(approval_id, "reject", **fields)

    async def edit(self, approval_id: str, args: JsonObject, **fields: Any) -> JsonObject:
        """Approve a call with changed arguments; see `answer`."""
        return await self.answer(approval_id, "edit", args=args, **fields)

    async def respond(self, approval_id: str, response: JsonObject, **fields: Any) -> JsonObject:
        """Set the response of a long-running call; see `answer`."""
        return await self.answer(approval_id, "respond", response=response, **fields)

    async def progress(self, approval_id: str, response: JsonObject, **fields: Any) -> JsonObject:
        """Report the progress of a long-running call; see `answer`."""
        return await self.answer(approval_id, "progress", response=response, **fields)

    async def claim(self, approval_id: str, **fields: Any) -> JsonObject:
        """Claim a call. No one else can answer it until it is released; see `answer`."""
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
        """Send the same answer to many calls, and yield each outcome as soon as it is known.

        This is safe to repeat, even after an interruption: a call that already has an answer keeps it, and its outcome
        contains the error.

        Args:
            calls: Approval IDs, or calls from `each` or `list`. When you pass calls, an answer is accepted only if the
                call has not changed since you read it.
            action: The action for all answers.
            at_once: Number of answers to send concurrently.
            fields: Passed to `answer`.
        """
        running: set[asyncio.Task[Outcome]] = set()
        try:
            async for call in _iterate(calls):
                if len(running) >= at_once:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        yield task.result()
                running.add(asyncio.create_task(self._send_answer(call, action, fields)))
            for outcome in asyncio.as_completed(running):
                yield await outcome
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _send_answer(self, call: str | PendingCall, action: Action, fields: JsonObject) -> Outcome:
        answer = dict(fields)
        if isinstance(call, PendingCall):
            answer = call.as_seen | answer
        if action == "progress":  # the only action that would take effect twice if repeated
            content = {name: repr(value) for name, value in fields.items() if name not in ("token", "confirm_within")}
            answer.setdefault("answer_id", digest([action, content]))
        approval_id = call if isinstance(call, str) else call.approval_id
        try:
            return Outcome(approval_id, receipt=await self.answer(approval_id, action, **answer))
        except (WaystationError, RPCError) as error:
            return Outcome(approval_id, error=error)

    async def list(self, *, limit: int = PAGE_SIZE, page: str | None = None, **filters: Any) -> Page:
        """Return one page of pending calls, in the same order as `each`.

        Args:
            limit: Number of calls. A page may have a few more, because calls of the same invocation stay together.
            page: `next` from the previous page, or None for the first page.
            filters: The same filters that `each` accepts.

        Raises:
            ValueError: `page` does not come from a list of pending calls.
        """
        calls: list[PendingCall] = []
        at = ListPosition.parse(page) if page else None
        async for execution, matches in find_pending_calls(self._client, ApprovalFilter.from_options(**filters), at):
            if len(calls) >= limit:
                return Page(tuple(calls), at.format() if at else None)
            at = ListPosition.after(execution, at)
            calls.extend(matches)
        return Page(tuple(calls), None)


def _is_omitted(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"omitted_bytes"}


def _parse_approval_id(approval_id: str) -> tuple[str, str]:
    try:
        invocation_id, function_call_id = ids.parse_approval(approval_id)
    except ValueError as error:
        raise UnknownCall(str(error)) from None
    return invocation_id, ids.requesting_call(function_call_id)


def _translate_error(error: RPCError, invocation_id: str) -> Exception:
    """Translate a "not found" error into `UnknownCall`, and return any other error unchanged."""
    return UnknownCall(f"There is no invocation {invocation_id!r}.") if is_not_found(error) else error


async def _iterate(
    calls: Iterable[str | PendingCall] | AsyncIterable[PendingCall],
) -> AsyncIterator[str | PendingCall]:
    if isinstance(calls, AsyncIterable):
        async for call in calls:
            yield call
        return
    unique = {item if isinstance(item, str) else item.approval_id: item for item in calls}
    for item in unique.values():
        yield item
