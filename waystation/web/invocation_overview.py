"""The top of the pages of an invocation: status, pending calls, problems, figures and related pages."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from temporalio.client import WorkflowExecutionDescription
from temporalio.service import RPCError

from waystation.client import AgentClient, InvocationEntry, fold_called, read_entry
from waystation.core.approval import PendingCall
from waystation.core.contract import InvocationInput
from waystation.core.log import Log
from waystation.history import PendingRetry, fetch_retries
from waystation.presentation import terminal, text_safety, words
from waystation.web.invocation_details import InvocationDetails
from waystation.web.shared_reads import SharedReads
from waystation.web.turn_views import make_title

MAX_CHILDREN = 100
"""Maximum number of called agents to list, newest first."""
FAILING_TASKS = "TemporalReportedProblems"
"""Search attribute that Temporal sets while the workflow tasks of an execution fail."""
STUCK = (
    "The workflow tasks of this invocation fail, so it does not continue. The log of the worker and the Temporal Web "
    "UI show the error."
)


class LinkedFact(NamedTuple):
    """A labeled fact, with the page that it links to, if any."""

    label: str
    text: str
    path: str = ""
    status: str = ""
    """For an invocation: its status."""


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The top of the pages of an invocation."""

    id: str
    entry: InvocationEntry
    title: str
    """The beginning of the message."""
    calls: Sequence[PendingCall]
    """The pending calls, including those of called agents."""
    problems: Sequence[str]
    """Why the invocation failed or does not continue, each in one line."""
    is_retrying: bool
    """Whether an attempt can be made earlier, or given up."""
    figures: Sequence[tuple[str, str]]
    links: Sequence[LinkedFact]
    version: str
    """Changes whenever the history grows, so that open pages know when to read their view again."""

    @property
    def path(self) -> str:
        """The path of the invocation's page."""
        return make_path(self.id)

    @property
    def is_open(self) -> bool:
        """Whether the invocation has not ended."""
        return self.entry.ended_at is None


def make_path(invocation_id: str) -> str:
    """Return the path of an invocation's page."""
    return f"/invocations/{quote(invocation_id, safe='')}"


async def load_overview(
    client: AgentClient,
    reads: SharedReads,
    described: WorkflowExecutionDescription,
    log: Log | None,
    details: InvocationDetails,
    now: float,
) -> Overview:
    """Read what the top of a page shows.

    Raises:
        RPCError: The server does not respond.
    """
    entry, children = await read_entry(described), tuple[InvocationEntry, ...]()
    with suppress(RPCError, ValueError):  # an old server, or an ID that no query can contain
        children = await reads.read_list(
            ("children", described.id), lambda: client.invocations.list(parent=described.id, limit=MAX_CHILDREN)
        )
    entry, *called = fold_called([entry, *children], keep=True)
    retries = (await fetch_retries(client.temporal, described.id))[0] if entry.ended_at is None else []
    forks = await reads.read(("forks", described.id), lambda: client.forks.of(described.id))
    is_stuck = entry.ended_at is None and bool(described.search_attributes.get(FAILING_TASKS))
    return Overview(
        id=described.id,
        entry=entry,
        title=make_title(log) or details.message,
        calls=(*(log.state.pending() if log and entry.may_have_more else entry.pending), *entry.called_pending),
        problems=[*([STUCK] if is_stuck else []), *list_problems(entry, retries, log, details, now)],
        is_retrying=bool(entry.holds or any(retry.failed for retry in retries)),
        figures=list_figures(entry, log, now),
        links=list_links(entry, log.state.input if log else None, called, [fork.id for fork in forks]),
        version=f"{described.run_id} {described.history_length} {sum(each.ended_at is None for each in called)}",
    )


def list_problems(
    entry: InvocationEntry, retries: Sequence[PendingRetry], log: Log | None, details: InvocationDetails, now: float
) -> list[str]:
    """Return why an invocation failed or does not continue, each in one line."""
    holds = [
        f"Held for {text_safety.format_duration(now - float(hold.get('since') or now))}, {terminal.format_hold(hold)}"
        for hold in entry.holds
    ]
    tried = [words.describe_retry(retry, log, now) for retry in retries]
    # A held call is also retried, for the same reason.
    return [*([details.error] if details.error else []), *(holds or tried)]


def list_figures(entry: InvocationEntry, log: Log | None, now: float) -> list[tuple[str, str]]:
    """Return the key figures, as pairs of label and text."""
    began = log.entries[0].time if log and log.entries and not log.entries_before else entry.started_at.timestamp()
    ended = entry.ended_at.timestamp() if entry.ended_at else now
    rows = [("duration" if entry.ended_at else "so far", text_safety.format_duration(ended - began))]
    if log is not None:
        rows += [*words.list_spending(log.state), ("events", f"{log.state.event_count:,}")]
    return rows


def list_links(
    entry: InvocationEntry, started: InvocationInput | None, called: Sequence[InvocationEntry], forks: Sequence[str]
) -> list[LinkedFact]:
    """Return the user and the related pages: session, caller, called agents, source and forks."""
    line = text_safety.format_line
    rows = [LinkedFact("User", line(entry.user_id or ""))] if entry.user_id else []
    if entry.tenant:
        rows.append(LinkedFact("Tenant", line(entry.tenant)))
    if started is not None and started.session is not None:
        path = f"/sessions/{quote(started.session.id, safe='')}"
        rows.append(LinkedFact("Session", line(started.session_id or started.session.id), path))
    elif started is not None and started.session_id:
        rows.append(LinkedFact("Session", line(started.session_id)))
    if entry.is_called and entry.parent:
        rows.append(LinkedFact("Called by", line(entry.parent), make_path(entry.parent)))
    elif entry.parent and not (started and started.session):
        rows.append(LinkedFact("Started by", f"workflow {line(entry.parent)}"))
    if started is not None and started.fork is not None:
        source = started.fork
        text = f"event {source.event} of {line(source.invocation_id)}"
        rows.append(LinkedFact("Forked from", text, f"{make_path(source.invocation_id)}#e{source.event}"))
    rows += [LinkedFact("Called", line(each.agent or each.id), make_path(each.id), each.status) for each in called]
    return rows + [LinkedFact("Fork", line(fork), make_path(fork)) for fork in forks]
