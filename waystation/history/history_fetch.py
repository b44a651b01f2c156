"""Fetch workflow descriptions, the runs of a session, and history events from the server."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import Any, TypeVar

import structlog
from temporalio.api.common.v1 import WorkflowExecution as WorkflowExecutionProto
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHistoryEventAsyncIterator,
)
from temporalio.service import RPCError, RPCStatusCode

from waystation.core import ids
from waystation.core.approval import Origin
from waystation.core.contract import EVENT_WORKFLOW, MEMO_FORK, SESSION_WORKFLOW, WORKFLOW
from waystation.core.errors import KeyMissing
from waystation.core.push import PUSH_WORKFLOW
from waystation.core.scope_state import SCOPE_WORKFLOW
from waystation.history.history_events import TASK_IN_FLIGHT, EventType, decode_events, find_run_id, get_time_s
from waystation.storage import describe_missing_key

log = structlog.get_logger("waystation.history")

T = TypeVar("T")

OWNED_TYPES = (WORKFLOW, SESSION_WORKFLOW, SCOPE_WORKFLOW, EVENT_WORKFLOW, PUSH_WORKFLOW)
"""The types of workflows that belong to users, apps or tenants. All other workflows belong to other programs."""
READER_AHEAD = "CurrentBranchChangedFailure"
"""Type of the server's error when a reader is ahead of the server. This happens after a failover, or on a busy server
whose change notification arrives late."""


def is_not_found(error: RPCError) -> bool:
    """Return whether the error means that the workflow or run does not exist.

    A missing namespace has the same status, so the message is checked, too.
    """
    return error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower()


async def fetch_signal_times(client: Client, workflow_id: str, run_id: str) -> list[float]:
    """Return when the signals of a run arrived at the server, in their order, in seconds since 1970.

    Raises:
        RPCError: The run does not exist, or the server did not respond.
    """
    history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    kind = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return [get_time_s(event) for event in history.events if event.event_type == kind]


async def fetch_or_none(answer: Awaitable[T]) -> T | None:
    """Return the server's response, or None if the workflow or run does not exist."""
    try:
        return await answer
    except RPCError as error:
        if not is_not_found(error):
            raise
        return None


async def describe_workflow(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """Return the description of a workflow's latest run, or None if the workflow does not exist."""
    return await fetch_or_none(client.get_workflow_handle(workflow_id).describe())


async def read_memo(execution: WorkflowExecution, *, required: str = "") -> dict[str, Any]:
    """Return the memo of a workflow without the fields that this process cannot decrypt, which it logs.

    Anyone who can start a workflow can add such a field, which must not prevent others from being listed.

    Raises:
        KeyMissing: The required field cannot be decrypted.
    """
    memo: dict[str, Any] = {}
    for name, payload in execution.raw_info.memo.fields.items():
        try:
            [memo[name]] = await execution.data_converter.decode([payload])
        except (KeyError, RuntimeError):  # the SDK raises them for an unknown encoding and for invalid content
            codec = execution.data_converter.payload_codec
            [decoded] = await codec.decode([payload]) if codec else [payload]
            problem = describe_missing_key(decoded) or "it cannot be decoded."
            if name == required:
                raise KeyMissing(problem) from None
            log.warning("memo.unreadable", workflow_id=execution.id, field=name, problem=problem)
    return memo


LISTING_PAUSES_S = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Pauses between attempts to find a new run in the server's list."""


@dataclass(frozen=True, slots=True, order=True)
class WorkflowRun:
    """One run of a workflow."""

    workflow_id: str
    run_id: str


async def list_runs(client: Client, workflow_id: str, latest: str) -> list[WorkflowExecution]:
    """Return all runs with a workflow ID that the server lists, including runs that a reset replaced.

    Some may belong to an earlier workflow with the same ID. The server lists new runs only after a delay, so wait until
    it lists the run with the ID `latest`. If it is still missing after all `LISTING_PAUSES_S`, return the other runs.

    Raises:
        RPCError: The server cannot be reached.
    """
    prefix = _quotable_part(workflow_id)
    query = f"WorkflowId {'=' if prefix == workflow_id else 'STARTS_WITH'} '{prefix}'"
    runs = list[WorkflowExecution]()
    for pause in (*LISTING_PAUSES_S, 0.0):
        runs = [run async for run in client.list_workflows(query) if run.id == workflow_id]
        if any(run.run_id == latest for run in runs):
            break
        await asyncio.sleep(pause)
    return runs


def _quotable_part(workflow_id: str) -> str:
    """Return an ID up to its first quotation mark, backslash or control character, which queries cannot contain."""
    return "".join(takewhile(lambda char: char.isprintable() and char not in "'\"\\", workflow_id))


async def find_session_runs(client: Client, session: str) -> dict[WorkflowRun, bool]:
    """Return all known runs of a session and its descendants, and whether each run is open.

    Descendants are the invocations that the session started, the agents that these called, and the forks of both. The
    recorded parent or source decides, because anyone may start a workflow whose ID looks like that of a descendant.

    The server's visibility store lists new runs only after a delay. To avoid this delay, running workflows are also
    found as children of their parents, and the latest invocations by their numbers. A called agent that has just
    closed may still be missing.
    """
    # The IDs of descendants begin with that of the session, which keeps the list short. It may contain other workflows,
    # for example because a server treats `_` and `%` as wildcards.
    if (prefix := _quotable_part(session)) == session:
        query = f"WorkflowId = '{session}' OR WorkflowId STARTS_WITH '{session}/'"
    else:
        query = f"WorkflowId STARTS_WITH '{prefix}'"
    runs, found = dict[WorkflowRun, bool](), {session}
    listed = [each async for each in client.list_workflows(query) if each.workflow_type in (SESSION_WORKFLOW, WORKFLOW)]
    for each in sorted(listed, key=lambda each: each.id):  # sources first, because their IDs are shorter
        is_session = each.workflow_type == SESSION_WORKFLOW
        if each.id == session if is_session else await _find_source(each) in found:
            found.add(each.id)
            runs |= list_open([each])
    open_ids = {run.workflow_id for run, is_open in runs.items() if is_open}
    if (described := await describe_workflow(client, session)) and described.workflow_type == SESSION_WORKFLOW:
        open_ids.add(session)
    latest = max((invocation_number(run.workflow_id, session) for run in runs), default=0)
    while described := await describe_workflow(client, ids.session_invocation(session, latest := latest + 1)):
        open_ids |= {described.id} if described.parent_id == session else set()
    return runs | list_open(await find_open_workflows(client, open_ids))


async def find_open_workflows(client: Client, workflow_ids: Iterable[str]) -> list[WorkflowExecutionDescription]:
    """Return the latest runs of workflows, and of the children that running ones wait for.

    Workflows that do not exist any more, and those of other programs, are left out.
    """
    found = list[WorkflowExecutionDescription]()
    queue, seen = list(workflow_ids), set[str]()
    while queue:
        if (workflow_id := queue.pop()) in seen:
            continue
        seen.add(workflow_id)
        described = await describe_workflow(client, workflow_id)
        if described is not None and described.workflow_type in OWNED_TYPES:
            found.append(described)
            if described.status is WorkflowExecutionStatus.RUNNING:
                queue += [child.workflow_id for child in described.raw_description.pending_children]
    return found


def run_of(execution: WorkflowExecution) -> WorkflowRun:
    """Return the run of an execution."""
    return WorkflowRun(execution.id, execution.run_id)


def list_open(executions: Iterable[WorkflowExecution]) -> dict[WorkflowRun, bool]:
    """Return the runs of executions, and whether each is open."""
    return {run_of(each): each.status is WorkflowExecutionStatus.RUNNING for each in executions}


async def _find_source(execution: WorkflowExecution) -> str | None:
    """Return the ID of the workflow that started an invocation or, for a fork, of its source."""
    if execution.parent_id:
        return execution.parent_id
    fork = (await read_memo(execution)).get(MEMO_FORK)
    return fork.get("invocation_id") if isinstance(fork, dict) else None


def invocation_number(workflow_id: str, session: str) -> int:
    """Return the number of the invocation that a workflow belongs to, or 0 for the session itself."""
    number = workflow_id.removeprefix(f"{session}/").partition("/")[0]
    return int(number) if number.isdecimal() else 0


class HistoryPoll:
    """Long-polls the history of one run until the run ends."""

    def __init__(self, client: Client, workflow_id: str, run_id: str | None = None) -> None:
        self._client, self._workflow_id, self._run_id = client, workflow_id, run_id
        self._pages = self._poll_from_start()
        self._first_run_id, self._last = "", HistoryEvent()

    @property
    def more(self) -> bool:
        """Whether there may be another page."""
        return self._pages.current_page is None or bool(self._pages.next_page_token)

    async def page(self) -> Sequence[HistoryEvent]:
        """Wait for the next events and return them with decoded payloads. A page is occasionally empty.

        After a failover, polling may have to restart from the first event, so pages can repeat earlier events.

        Raises:
            RPCError: The run does not exist, or the server did not respond.
            StoreFailed: The payload store could not be read.
        """
        try:
            await self._pages.fetch_next_page()
        except RPCError as error:
            if not any(detail.type_url.endswith(READER_AHEAD) for detail in error.grpc_status.details):
                raise
            self._pages = self._poll_from_start()
            await self._pages.fetch_next_page()
        page = self._pages.current_page or ()
        if page:
            # From here on, fetch by run ID, because a reset may have made a different run the latest.
            self._run_id, self._last = find_run_id(page) or self._run_id, page[-1]
            first = page[0].workflow_execution_started_event_attributes.first_execution_run_id
            self._first_run_id = first or self._first_run_id
        return await decode_events(page, self._client.data_converter)

    async def replaced_by(self) -> str | None:
        """Return the ID of the run that replaced this one after a reset, or None if the run was not reset.

        Raises:
            RPCError: The server did not respond.
        """
        if self._last.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            return None
        latest = await describe_workflow(self._client, self._workflow_id)
        if latest is None:  # deleted since
            return None
        # A new workflow with the same ID has a different first run.
        is_same_workflow = latest.raw_description.workflow_execution_info.first_run_id == self._first_run_id
        return latest.run_id if is_same_workflow and latest.run_id != self._run_id else None

    def _poll_from_start(self) -> WorkflowHistoryEventAsyncIterator:
        handle = self._client.get_workflow_handle(self._workflow_id, run_id=self._run_id)
        return handle.fetch_history_events(wait_new_event=True)


COLD_PAGE = 1_000
TAIL_PAGE = 20
"""Number of events per page when only new events are needed. These are at the end of the history, so it is read
backward. For a long history, this takes 2 ms instead of 10 ms."""


async def fetch_origin(client: Client, workflow_id: str, run_id: str) -> Origin | None:
    """Return a run's workflow type, first run and parent, or None if the server has deleted the run's history.

    Raises:
        RPCError: The server cannot be reached.
    """
    request = GetWorkflowExecutionHistoryRequest(
        namespace=client.namespace,
        execution=WorkflowExecutionProto(workflow_id=workflow_id, run_id=run_id),
        maximum_page_size=1,
    )
    answer = await fetch_or_none(client.workflow_service.get_workflow_execution_history(request))
    if answer is None:
        return None
    started = answer.history.events[0].workflow_execution_started_event_attributes
    parent = started.parent_workflow_execution
    return Origin(
        started.workflow_type.name,
        started.first_execution_run_id,
        (parent.workflow_id, parent.run_id) if parent.workflow_id else None,
    )


async def fetch_events_after(client: Client, workflow_id: str, run_id: str, known: int) -> Sequence[HistoryEvent]:
    """Return the events after the event with ID `known`, oldest first, with decoded payloads.

    The events of a workflow task in flight are omitted, because other events may later get their IDs.

    Raises:
        RPCError: The run does not exist, or the server did not respond.
        StoreFailed: The payload store could not be read.
    """
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecutionProto(workflow_id=workflow_id, run_id=run_id),
        maximum_page_size=TAIL_PAGE if known else COLD_PAGE,
    )
    newest_first: list[HistoryEvent] = []
    while not newest_first or (request.next_page_token and newest_first[-1].event_id > known):
        page = await client.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
        newest_first.extend(page.history.events)
        request.next_page_token = page.next_page_token
    settled = dropwhile(lambda event: event.event_type in TASK_IN_FLIGHT, newest_first)
    new = [event for event in settled if event.event_id > known]
    return await decode_events(reversed(new), client.data_converter)
