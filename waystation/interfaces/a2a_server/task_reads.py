"""Read the tasks of a person from Temporal: one, several, or one whenever it changes."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC
from typing import Any
from urllib.parse import urlencode

import anyio
import structlog
from a2a.types import Artifact, ListTasksRequest, ListTasksResponse, Part, Task, TaskState
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError

from waystation.approvers import sees_invocation
from waystation.client import Invocation, InvocationEntry, Session
from waystation.core import ids
from waystation.core.contract import DEFAULT_APP
from waystation.core.errors import ForeignHistory, InputValidationError, StoreFailed
from waystation.core.log import Log
from waystation.core.push import ENDS
from waystation.history import describe_workflow
from waystation.interfaces.a2a_server.task_views import (
    INTERRUPTED,
    TERMINAL,
    TaskRef,
    cut_history,
    format_part,
    make_task,
)
from waystation.interfaces.open_calls import OpenCall, find_open_calls, watch
from waystation.web.call_answers import CONCURRENT_READS
from waystation.web.invocation_list_reader import MOST
from waystation.web.invocation_pages import describe
from waystation.web.json_api import ANY_AGENT
from waystation.web.logins import Login
from waystation.web.paths import API_V1
from waystation.web.starter import identify_starter, tenant_of
from waystation.web.web_services import WebServices

events = structlog.get_logger("waystation.web")

PAGE, MAX_PAGE = 50, 100
TOKEN_SEPARATOR = " "
INLINE_BYTES = 1_000_000
"""Maximum size of a file whose content is part of a task. Of a larger one, the task has a link."""
MAX_FILES = 50
"""A task has its latest files."""
EXACT = {*INTERRUPTED, TaskState.TASK_STATE_REJECTED}
"""The states that only the log of a task shows."""
COARSE = {
    TaskState.TASK_STATE_COMPLETED: {"completed"},
    TaskState.TASK_STATE_CANCELED: {"canceled"},
    TaskState.TASK_STATE_FAILED: {"failed", "terminated", "timed_out"},
    TaskState.TASK_STATE_REJECTED: {"failed"},
}
"""The statuses of invocations that a task with a state can have. For other states, those of open ones."""


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads tasks for one person, who finds only tasks of one agent that the person may see."""

    services: WebServices
    login: Login
    agent: str
    base: str
    """The address of this server, without the final slash."""

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
        log = await self.read_log(ref) if ref else None
        if ref and await (self.may_see(ref, log) if log else self._is_queued(ref)):
            return ref, log
        raise TaskNotFoundError(message=f"There is no task {task_id[:100]!r}.")

    async def may_see(self, ref: TaskRef, log: Log) -> bool:
        """Return whether it is a task of the agent that the person may see: one's own, or as long as one is asked."""
        started = log.state.input
        if started is None or started.agent != self.agent:
            return started is None and self.is_own(ref)
        is_seen = self.is_own(ref) or sees_invocation(self.login, started.requesters, started.tenant)
        return is_seen or bool(await self.read_calls(ref, log))

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
        if not self.is_own(ref) or await describe_workflow(self.services.client.temporal, session.id) is None:
            return False
        return any(turn.get("id") == ref.invocation_id for turn in await session.invocations())

    async def read_calls(self, ref: TaskRef, log: Log) -> list[OpenCall]:
        """Return the open calls of a task that the person may see."""
        return await find_open_calls(self.services, self.login, self.open_session(ref), [log])

    async def read(self, ref: TaskRef, log: Log | None, *, with_files: bool = True) -> Task:
        """Return the task as the person sees it now."""
        calls = await self.read_calls(ref, log) if log else []
        files = await read_files(self.services, self.open_session(ref), log, self.base) if log and with_files else []
        return make_task(ref, log, calls, person=self.login.subject, files=files, link=self.base)

    async def follow(self, ref: TaskRef, invocation: Invocation) -> AsyncGenerator[Task]:
        """Yield the task as it is, and whenever it changes, until it has ended or the person may not see it."""
        before: Task | None = None
        async with aclosing(watch(invocation, partial=False)) as logs:
            async for log, _, _ in logs:
                if not await self.may_see(ref, log):
                    return
                task = await self.read(ref, log)
                if task != before:
                    before = task
                    yield task
                if task.status.state in TERMINAL:
                    return

    async def wait(
        self, ref: TaskRef, invocation: Invocation, log: Log | None, limit_s: float, *, ends: Collection[TaskState]
    ) -> Task:
        """Wait until a task has a state in `ends`, or for a time. Return the latest version that the person may see."""
        task: Task | None = None
        with suppress(TimeoutError, ForeignHistory):
            async with asyncio.timeout(limit_s), aclosing(self.follow(ref, invocation)) as tasks:
                async for task in tasks:
                    if task.status.state in ends:
                        break
        return task or await self.read(ref, log)

    async def read_page(self, params: ListTasksRequest) -> ListTasksResponse:
        """Return a page of the person's own tasks, latest first.

        Raises:
            InvalidParamsError: A parameter is invalid.
        """
        size = params.page_size if params.HasField("page_size") else PAGE
        if not 1 <= size <= MAX_PAGE:
            raise InvalidParamsError(message=f"The page size {size} is not valid. Use 1 to {MAX_PAGE}.")
        entries, tasks = await self._list_entries(params), dict[str, Task]()
        if params.status in EXACT or params.HasField("status_timestamp_after"):
            tasks = await self._read_all(entries, params)
            entries = [entry for entry in entries if entry.id in tasks and _matches(tasks[entry.id], params)]
        total = len(entries)
        if params.page_token:
            after = parse_token(params.page_token)
            entries = [entry for entry in entries if make_position(entry) < after]
        page = entries[:size]
        tasks |= await self._read_all([entry for entry in page if entry.id not in tasks], params)
        shown = [tasks[entry.id] for entry in page if entry.id in tasks]
        token = TOKEN_SEPARATOR.join(make_position(page[-1])) if len(entries) > size else ""
        return ListTasksResponse(tasks=shown, next_page_token=token, page_size=size, total_size=total)

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
        wanted, is_open = COARSE.get(params.status, set()), params.status not in COARSE

        def is_wanted(entry: InvocationEntry) -> bool:
            ref = TaskRef.of(entry.id)
            is_match = not params.status or entry.status in wanted or (is_open and entry.status not in ENDS)
            return ref is not None and self.is_own(ref) and is_match and entry.agent in (self.agent, None)

        return sorted(filter(is_wanted, found), key=make_position, reverse=True)

    async def _read_all(self, entries: Iterable[InvocationEntry], params: ListTasksRequest) -> dict[str, Task]:
        limiter, tasks = anyio.CapacityLimiter(CONCURRENT_READS), dict[str, Task]()
        length = params.history_length if params.HasField("history_length") else None

        async def read(ref: TaskRef | None) -> None:
            async with limiter:
                if ref and (log := await self.read_log(ref)) is not None:
                    task = await self.read(ref, log, with_files=params.include_artifacts)
                    tasks[ref.invocation_id] = cut_history(task, length)

        async with anyio.create_task_group() as group:
            for entry in entries:
                group.start_soon(read, TaskRef.of(entry.id))
        return tasks


def _matches(task: Task, params: ListTasksRequest) -> bool:
    is_match = not params.status or task.status.state == params.status
    return is_match and task.status.timestamp.ToNanoseconds() >= params.status_timestamp_after.ToNanoseconds()


def make_position(entry: InvocationEntry) -> tuple[str, str]:
    """Return what tasks are sorted by: the latest time that the list knows, and the ID."""
    return (entry.ended_at or entry.started_at).astimezone(UTC).isoformat(timespec="microseconds"), entry.id


def parse_token(token: str) -> tuple[str, str]:
    """Return the position that a page follows. It selects among the person's own tasks, so anyone may make one.

    Raises:
        InvalidParamsError: The token does not contain a position.
    """
    time, separator, id = token.partition(TOKEN_SEPARATOR)
    if not separator or not id:
        text = f"The page token {token[:100]!r} is not valid. Use the `next_page_token` of a page."
        raise InvalidParamsError(message=text)
    return time, id


async def read_files(services: WebServices, session: Session, latest: Log, link: str) -> list[Artifact]:
    """Return the files that an invocation has saved, each in its latest version."""
    scope, found = session.given.artifact_scope, list(latest.state.outcome.artifact_delta.items())[-MAX_FILES:]
    artifacts = []
    for name, version in found:
        try:
            part = await services.sessions.open_artifacts().load_artifact(**scope, filename=name, version=version)
        except (StoreFailed, InputValidationError) as error:
            events.warning("artifact.left_out", invocation_id=latest.invocation_id, error_type=type(error).__name__)
            continue
        if part is not None:
            place = f"{link}{API_V1}/sessions/{session.id.replace('%', '%25').replace('/', '%2F')}/artifacts/content"
            url = f"{place}?{urlencode({'name': name, 'version': version})}"
            shown = make_part(part, name, url)
            artifacts.append(Artifact(artifact_id=f"file:{name}:{version}", name=name, parts=[shown]))
    return artifacts


def make_part(part: Any, name: str, url: str) -> Part:
    """Return a stored file as a part. `url` is where its content can be downloaded."""
    size = len(part.inline_data.data or b"") if part.inline_data else len((part.text or "").encode())
    kind = (part.inline_data or part.file_data).mime_type if part.inline_data or part.file_data else "text/plain"
    made = format_part(part.model_dump(mode="json", by_alias=True, exclude_none=True)) if size <= INLINE_BYTES else None
    made = made or Part(url=url)
    made.filename, made.media_type = name, kind or "application/octet-stream"
    return made
