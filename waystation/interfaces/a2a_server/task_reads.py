"""Read the tasks of a person from Temporal: one, several, or one whenever it changes."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio
from a2a.types import ListTasksRequest, ListTasksResponse, Task, TaskState
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError

from waystation.approvers import sees_invocation
from waystation.client import Invocation, InvocationEntry, Session
from waystation.core import ids
from waystation.core.contract import DEFAULT_APP
from waystation.core.errors import ForeignHistory
from waystation.core.log import Log
from waystation.history import describe_workflow
from waystation.interfaces.a2a_server.task_artifacts import read_files
from waystation.interfaces.a2a_server.task_views import INTERRUPTED, TERMINAL, TaskRef, cut_history, make_task
from waystation.interfaces.open_calls import OpenCall, find_open_calls
from waystation.web.call_answers import CONCURRENT_READS
from waystation.web.invocation_list_reader import MOST
from waystation.web.invocation_pages import describe
from waystation.web.json_api import ANY_AGENT
from waystation.web.logins import Login
from waystation.web.paths import root
from waystation.web.starter import identify_starter, tenant_of
from waystation.web.web_services import WebServices

PAUSE_S = 1.0
"""How often to look for calls of agents that a task has called, whose histories are not those of the task."""
PAGE, MAX_PAGE = 50, 100
COARSE = {
    TaskState.TASK_STATE_COMPLETED: {"completed"},
    TaskState.TASK_STATE_CANCELED: {"canceled"},
    TaskState.TASK_STATE_FAILED: {"failed", "terminated", "timed_out"},
    TaskState.TASK_STATE_REJECTED: {"failed"},
}
"""The statuses of invocations that a task with a state can have. For other states, those of open ones."""
ENDED = {"completed", "canceled", "failed", "terminated", "timed_out"}


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads tasks for one person, who finds only tasks of one agent that the person may see."""

    services: WebServices
    login: Login
    agent: str

    @property
    def link(self) -> str:
        """The address of this server's pages."""
        url = self.services.settings.url
        return url.rstrip("/") if url else root()

    def open_session(self, ref: TaskRef) -> Session:
        """Return the session of a task."""
        app, tenant = ids.parse_app_key(ref.app_key)
        return self.services.client.session(
            agent=ANY_AGENT, session_id=ref.session_id, user_id=ref.user_id, app=app, tenant=tenant
        )

    def is_own(self, ref: TaskRef) -> bool:
        """Return whether the person owns the context of a task."""
        (app, tenant), login = ids.parse_app_key(ref.app_key), self.login
        return (app, tenant, ref.user_id) == (DEFAULT_APP, tenant_of(login), identify_starter(login))

    async def find(self, task_id: str) -> tuple[TaskRef, Log | None]:
        """Return a task and its log, which is None if it is queued.

        Raises:
            TaskNotFoundError: There is no such task of this agent, or the person may not see it.
        """
        ref = TaskRef.parse(task_id)
        unknown = TaskNotFoundError(message=f"There is no task {task_id[:100]!r}.")
        if ref is None:
            raise unknown
        log = await self.read_log(ref)
        if log is None:
            is_queued = self.is_own(ref) and await self._is_queued(ref)
            if not is_queued:
                raise unknown
            return ref, None
        started = log.state.input
        if started is None or started.agent != self.agent:
            raise unknown
        is_visible = self.is_own(ref) or sees_invocation(self.login, started.requesters, started.tenant)
        # Those who are asked see it as long as it waits for them.
        if not is_visible and not await self.read_calls(ref, log):
            raise unknown
        return ref, log

    async def read_log(self, ref: TaskRef) -> Log | None:
        """Return the log of a task, or None if its invocation has not begun."""
        if await describe(self.services.client, ref.invocation_id) is None:
            return None
        with suppress(ForeignHistory):
            log = await self.services.client.invocation(ref.invocation_id).log()
            return log if log.state.events else None
        return None

    async def _is_queued(self, ref: TaskRef) -> bool:
        session = self.open_session(ref)
        if await describe_workflow(self.services.client.temporal, session.id) is None:
            return False
        return any(turn.get("id") == ref.invocation_id for turn in await session.invocations())

    async def read_calls(self, ref: TaskRef, log: Log) -> list[OpenCall]:
        """Return the open calls of a task that the person may see."""
        return await find_open_calls(self.services, self.login, self.open_session(ref), [log])

    async def read(self, ref: TaskRef, log: Log | None, *, with_files: bool = True) -> Task:
        """Return the task as the person sees it now."""
        calls = await self.read_calls(ref, log) if log else []
        return await self.make(ref, log, calls, with_files=with_files)

    async def make(self, ref: TaskRef, log: Log | None, calls: list[OpenCall], *, with_files: bool = True) -> Task:
        """Return the task with its files."""
        files = await read_files(self.services, self.open_session(ref), log, self.link) if log and with_files else []
        return make_task(ref, log, calls, person=self.login.subject, files=files, link=self.link)

    async def follow(self, ref: TaskRef, invocation: Invocation) -> AsyncGenerator[Task]:
        """Yield the task as it is, and whenever it changes, until it has ended."""
        before: Task | None = None
        async with aclosing(watch(invocation)) as logs:
            async for log in logs:
                task = await self.read(ref, log)
                if task != before:
                    before = task
                    yield task
                if task.status.state in TERMINAL:
                    return

    async def wait(
        self, ref: TaskRef, invocation: Invocation, limit_s: float, *, ends: Collection[TaskState]
    ) -> Task | None:
        """Wait until a task has a state in `ends`, or for a time. Return the latest version, if any."""
        task: Task | None = None
        with suppress(TimeoutError, ForeignHistory):
            async with asyncio.timeout(limit_s), aclosing(self.follow(ref, invocation)) as tasks:
                async for task in tasks:
                    if task.status.state in ends:
                        return task
        return task

    async def read_page(self, params: ListTasksRequest) -> ListTasksResponse:
        """Return a page of the person's own tasks, latest first.

        Raises:
            InvalidParamsError: A parameter is invalid.
        """
        size = params.page_size if params.HasField("page_size") else PAGE
        if not 1 <= size <= MAX_PAGE:
            raise InvalidParamsError(message=f"The page size {size} is not valid. Use 1 to {MAX_PAGE}.")
        entries = await self._list_entries(params)
        is_exact = params.status in INTERRUPTED or params.HasField("status_timestamp_after")
        if is_exact or params.status == TaskState.TASK_STATE_REJECTED:
            tasks = await self._read_all(entries[:MOST], params)
            pairs = [(entry, task) for entry, task in zip(entries, tasks, strict=False) if _matches(task, params)]
        else:
            pairs = [(entry, None) for entry in entries]
        total = len(pairs)
        if params.page_token:
            after = parse_token(params.page_token)
            pairs = [pair for pair in pairs if make_position(pair[0]) < after]
        page, rest = pairs[:size], pairs[size:]
        if page and page[0][1] is None:
            made = await self._read_all([entry for entry, _ in page], params)
            found = [task for task in made if task is not None]
        else:
            found = [task for _, task in page if task is not None]
        token = format_token(page[-1][0]) if rest else ""
        return ListTasksResponse(tasks=found, next_page_token=token, page_size=size, total_size=total)

    async def _list_entries(self, params: ListTasksRequest) -> list[InvocationEntry]:
        owner, tenant = identify_starter(self.login), tenant_of(self.login)
        names: dict[str, Any] = {"user_id": owner, "tenant": tenant or "", "agent": self.agent}
        if params.context_id:
            session = self.services.starter.session(self.login, params.context_id, agent=self.agent)
            names = {"parent": session.id}
        key = ("a2a tasks", *sorted(names.items()))
        found = await self.services.reads.read_list(
            key, lambda: self.services.client.invocations.list(**names, limit=MOST)
        )
        wanted = COARSE.get(params.status)
        entries = []
        for entry in found:
            ref = TaskRef.of(entry.id)
            is_open = entry.status not in ENDED
            is_match = not params.status or (entry.status in wanted if wanted else is_open)
            if ref and self.is_own(ref) and is_match and entry.agent in (self.agent, None):
                entries.append(entry)
        return sorted(entries, key=make_position, reverse=True)

    async def _read_all(self, entries: Iterable[InvocationEntry], params: ListTasksRequest) -> list[Task | None]:
        limiter, tasks = anyio.CapacityLimiter(CONCURRENT_READS), dict[str, Task | None]()
        length = params.history_length if params.HasField("history_length") else None

        async def read(id: str) -> None:
            async with limiter:
                ref = TaskRef.of(id)
                assert ref is not None
                if (log := await self.read_log(ref)) is not None:
                    task = await self.read(ref, log, with_files=params.include_artifacts)
                    tasks[id] = cut_history(task, length)

        chosen = list(entries)
        async with anyio.create_task_group() as group:
            for entry in chosen:
                group.start_soon(read, entry.id)
        return [tasks.get(entry.id) for entry in chosen]


def _matches(task: Task | None, params: ListTasksRequest) -> bool:
    if task is None or (params.status and task.status.state != params.status):
        return False
    after = params.status_timestamp_after
    is_bound = params.HasField("status_timestamp_after")
    return not is_bound or task.status.timestamp.ToNanoseconds() >= after.ToNanoseconds()


def make_position(entry: InvocationEntry) -> tuple[datetime, str]:
    """Return what tasks are sorted by: the latest time that the list knows, and the ID."""
    return entry.ended_at or entry.started_at, entry.id


def format_token(entry: InvocationEntry) -> str:
    """Return the token of the page after an entry."""
    time, id = make_position(entry)
    return base64.urlsafe_b64encode(json.dumps([time.isoformat(), id]).encode()).decode()


def parse_token(token: str) -> tuple[datetime, str]:
    """Return the position that a page follows.

    Raises:
        InvalidParamsError: The token is not one of this server.
    """
    try:
        time, id = json.loads(base64.urlsafe_b64decode(token))
        return datetime.fromisoformat(time).astimezone(), str(id)
    except (ValueError, TypeError):
        text = f"The page token {token[:100]!r} is not valid. Use the `next_page_token` of a page."
        raise InvalidParamsError(message=text) from None


async def watch(invocation: Invocation) -> AsyncGenerator[Log]:
    """Yield the log whenever it grows and, while called agents run, from time to time."""
    logs = invocation.follow()
    latest: Log | None = None
    coming = asyncio.ensure_future(anext(logs, None))
    try:
        while True:
            has_called = latest is not None and any(call.call.kind == "agent" for call in latest.state.performing())
            done, _ = await asyncio.wait((coming,), timeout=PAUSE_S if has_called else None)
            if done:
                if (latest := coming.result()) is None:
                    return
                coming = asyncio.ensure_future(anext(logs, None))
            if latest is not None:
                yield latest
    finally:
        coming.cancel()
        with suppress(asyncio.CancelledError):
            await coming
