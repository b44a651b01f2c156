"""The list of invocations, with filters, sorting, pages and live updates, and the page that a login starts on."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError, RPCStatusCode

from waystation.approvers import is_requester, sees_everything, sees_invocation
from waystation.client import STATUSES, AgentClient, InvocationEntry, is_quotable, read_entry
from waystation.core.contract import MAX_KEYWORD
from waystation.core.errors import ForeignHistory, StoreFailed
from waystation.core.payload import JsonObject
from waystation.presentation import words
from waystation.web.http_responses import RequestRefused, redirect, render_page
from waystation.web.invocation_details import UNKNOWN, DetailsReader, InvocationDetails
from waystation.web.invocation_list_reader import MOST, InvocationReader
from waystation.web.list_query import ListQuery
from waystation.web.logins import Login
from waystation.web.shared_reads import SharedReads

MEASURED = 200
"""Maximum number of invocations whose usage and errors are read to sort or filter a list by them."""
MEASURING_S = 5.0
"""How long a list that is sorted or filtered by usage or errors waits for them."""
ROWS = 50
"""Number of invocations on a page of the list."""
MAX_CALLS = 3
"""Maximum number of pending calls to link in a row."""
OPEN = ("waiting", "held", "running")
TABS = ("open", *OPEN, "failed", "completed", "canceled", "terminated", "timed_out")
"""The statuses to filter by, in the order of the tabs."""
ALWAYS_SHOWN = ("open", "waiting", "held", "failed", "completed")
"""The tabs to show even if no invocation has the status."""
AGES: Mapping[str, tuple[str, timedelta, bool]] = {
    "hour": ("started within the last hour", timedelta(hours=1), True),
    "day": ("started within the last day", timedelta(days=1), True),
    "week": ("started within the last 7 days", timedelta(days=7), True),
    "over-hour": ("started more than an hour ago", timedelta(hours=1), False),
    "over-day": ("started more than a day ago", timedelta(days=1), False),
    "over-week": ("started more than 7 days ago", timedelta(days=7), False),
}
"""The ages to filter by: the label, the age, and whether invocations have to be younger."""
NOBODY = "\uffff"  # sorts last
LACKING = "The namespace lacks search attributes, which these filters need. Create them with `waystation setup`."
SORTS: Mapping[str, Callable[[InvocationEntry, float], Any]] = {
    "started": lambda entry, _: -entry.started_at.timestamp(),
    "agent": lambda entry, _: (entry.agent or "").lower(),
    "user": lambda entry, _: (entry.user_id or "").lower(),
    "status": lambda entry, _: (
        TABS.index(entry.status) if entry.status in TABS else len(TABS),
        min((call.requested_at for call in entry.pending), default=0.0),
    ),
    "duration": lambda entry, now: -entry.duration_s(now),
    "person": lambda entry, _: min((name.lower() for name in name_people(entry)), default=NOBODY),
}
"""The columns to sort by, each with the key of an entry. A `-` before the name reverses the order."""
DETAIL_SORTS: Mapping[str, Callable[[InvocationDetails], Any]] = {
    "tokens": lambda details: -details.tokens,
    "cost": lambda details: -details.cost,
    "error": lambda details: details.error.lower() or NOBODY,
}
"""The columns to sort by that visibility does not have, each with the key of details."""
SORT_LABELS = {
    "started": "newest first",
    "-started": "oldest first",
    "duration": "longest first",
    "status": "status",
    "agent": "agent",
    "user": "user",
    "person": "person awaited",
    "cost": "highest cost first",
    "tokens": "most tokens first",
    "error": "error",
}
"""The orders that the form offers."""


@dataclass(frozen=True, kw_only=True)
class ListFilters(ListQuery):
    """The filters, the order and the page of the invocations."""

    sort: str = "started"
    status: str = ""
    agent: str = ""
    user: str = ""
    age: str = ""
    person: str = ""
    """Part of a name or role: only invocations that wait for somebody with such a name."""
    error: str = ""
    """Text that the error contains. Invocations with other errors are left out."""
    called: str = ""
    """Not empty if agents that other agents called are listed, too."""

    choices = {
        "status": STATUSES,
        "age": AGES,
        "sort": [f"{sign}{name}" for name in (*SORTS, *DETAIL_SORTS) for sign in ("", "-")],
    }
    quoted = ("q", "agent", "user")
    not_filters = ("sort", "page", "called")

    @property
    def needs_details(self) -> bool:
        """Whether the order or a filter needs what visibility does not have."""
        return bool(self.error) or self.sort.removeprefix("-") in DETAIL_SORTS

    def conditions(self, now: datetime) -> JsonObject:
        """Return the filters that visibility applies, except the status."""
        _, age, is_younger = AGES.get(self.age, ("", timedelta(), True))
        bound = {"since" if is_younger else "until": now - age} if self.age else {}
        names = {"agent": self.agent or None, "user_id": self.user or None}
        return {**{name: value for name, value in names.items() if value}, "search": self.q, **bound}


def count_statuses(entries: Iterable[InvocationEntry]) -> dict[str, int]:
    """Return the number of invocations for each tab."""
    counts = Counter(entry.status for entry in entries)
    return {**{tab: counts[tab] for tab in TABS}, "open": sum(counts[status] for status in OPEN)}


def name_people(entry: InvocationEntry) -> list[str]:
    """Return the approvers that an invocation waits for, as the list shows them."""
    return [words.format_approvers(call) for call in (*entry.pending, *entry.called_pending)]


def match_person(entries: Iterable[InvocationEntry], person: str) -> list[InvocationEntry]:
    """Return the entries that wait for somebody with a name that contains `person`. All if it is empty."""
    part = person.casefold()
    return [entry for entry in entries if not part or any(part in name.casefold() for name in name_people(entry))]


def choose(entries: Iterable[InvocationEntry], filters: ListFilters, now: float) -> list[InvocationEntry]:
    """Return the entries with the status of the filters, sorted. Entries with equal keys keep their order.

    An order that needs details is left to `choose_by_details`.
    """
    wanted = OPEN if filters.status == "open" else (filters.status,)
    chosen = [entry for entry in entries if not filters.status or entry.status in wanted]
    column = SORTS.get(filters.sort.removeprefix("-"), SORTS["started"])
    is_reversed = filters.sort.startswith("-") and not filters.needs_details
    return sorted(chosen, key=lambda entry: column(entry, now), reverse=is_reversed)


def choose_by_details(
    entries: Iterable[InvocationEntry], filters: ListFilters, details: Mapping[str, InvocationDetails]
) -> list[InvocationEntry]:
    """Return the entries with the error of the filters, in an order that needs details."""
    part = filters.error.casefold()
    chosen = [entry for entry in entries if part in details.get(entry.id, UNKNOWN).error.casefold()]
    if column := DETAIL_SORTS.get(filters.sort.removeprefix("-")):
        return sorted(
            chosen, key=lambda entry: column(details.get(entry.id, UNKNOWN)), reverse=filters.sort.startswith("-")
        )
    return chosen


def make_row(entry: InvocationEntry, details: InvocationDetails, now: float) -> dict[str, Any]:
    """Return what the list shows about an invocation."""
    status, more = words.describe_status(entry)
    pending = (*entry.pending, *entry.called_pending)
    return {
        "entry": entry,
        "status": status,
        "more": "" if pending else more.removeprefix(", "),
        "calls": pending[:MAX_CALLS],
        "more_calls": max(0, len(pending) - MAX_CALLS),
        "plus": "+" if entry.may_have_more else "",
        "holds": words.format_holds(entry) if pending else "",
        "duration": entry.duration_s(now),
        "details": details,
    }


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of the invocations that a person may see and that filters match."""

    entries: Sequence[InvocationEntry]
    details: Mapping[str, InvocationDetails]
    counts: Mapping[str, int]
    """The number of invocations for each tab."""
    agents: tuple[str, ...]
    total: int
    has_more: bool
    """Whether there are older invocations, which are neither listed nor counted."""
    unmeasured: int
    """The number of invocations whose details were not read, although the order or a filter needs them."""
    is_searchable: bool
    page: int
    pages: int


class InvocationListPage:
    """The list of invocations."""

    def __init__(self, client: AgentClient, reads: SharedReads) -> None:
        self._client, self._reader = client, InvocationReader(client, reads)
        self.details = DetailsReader(client)

    async def start(self, request: Request) -> Response:
        """Redirect to the page that a person with these roles starts on, or to an invocation that `?id=` names."""
        if id := request.query_params.get("id", "").strip():
            return redirect(f"/invocations/{quote(id, safe='')}")
        login: Login = request.state.login
        pages = {"viewer": "/invocations", "approver": "/approvals", "author": "/agents"}
        path = next((path for role, path in pages.items() if role in login.roles), "/invocations")
        return redirect(path)

    async def read(self, login: Login, filters: ListFilters, now: datetime) -> Listing:
        """Return the invocations that a login may see and that the filters match.

        Raises:
            Refused: A filter cannot be searched for.
        """
        scope = await self._find_scope(login)
        entries, has_more = await self._read(filters, scope, now)
        if not entries and filters.q:
            entries = await self._find_by_id(login, filters)
        counts = count_statuses(match_person(entries, filters.person))
        if has_more and (status := filters.status or ("waiting" if filters.person else "")):
            entries, has_more = await self._read(filters, scope, now, status)
        chosen = choose(match_person(entries, filters.person), filters, now.timestamp())
        unmeasured = 0
        if filters.needs_details:
            unmeasured = max(0, len(chosen) - MEASURED)
            measured, others = chosen[:MEASURED], [] if filters.error else chosen[MEASURED:]
            details = await self.details.read(measured, patience_s=MEASURING_S)
            chosen = choose_by_details(measured, filters, details) + others
        shown, page, pages = filters.cut(chosen, ROWS)
        return Listing(
            entries=shown,
            details=await self.details.read(shown),
            counts=counts,
            agents=tuple(sorted({entry.agent for entry in entries if entry.agent})),
            total=len(chosen),
            has_more=has_more,
            unmeasured=unmeasured,
            is_searchable=scope is not None,
            page=page,
            pages=pages,
        )

    async def page(self, request: Request) -> Response:
        """Serve a page of the invocations that the login may see. With `?rows=1`, serve only the part that changes."""
        login: Login = request.state.login
        filters, now = ListFilters.parse(request.query_params), datetime.now(UTC)
        found = await self.read(login, filters, now)
        details, counts = found.details, found.counts
        template = "invocation_rows.html" if request.query_params.get("rows") else "invocations.html"
        return render_page(
            template,
            login=login,
            filters=filters,
            rows=[make_row(entry, details.get(entry.id, UNKNOWN), now.timestamp()) for entry in found.entries],
            counts=counts,
            tabs=[tab for tab in TABS if counts[tab] or tab in ALWAYS_SHOWN or tab == filters.status],
            ages={name: label for name, (label, _, _) in AGES.items()},
            sorts=SORT_LABELS,
            agents=found.agents,
            sees_users="viewer" in login.roles,
            is_searchable=found.is_searchable,
            is_unknown=not found.is_searchable and await self._client.searchable() is None,
            total=found.total,
            first=(found.page - 1) * ROWS,
            has_more=found.has_more,
            unmeasured=found.unmeasured,
            measured=MEASURED,
            most=MOST,
            page=found.page,
            pages=found.pages,
        )

    async def _find_by_id(self, login: Login, filters: ListFilters) -> list[InvocationEntry]:
        """Return the invocation whose ID is searched for, if the login may see it.

        Visibility knows the user of an invocation, but not who else requested it.
        """
        if "viewer" in login.roles or not is_requester(login, (login.subject,)) or "\0" in filters.q:
            return []
        invocation = self._client.invocation(filters.q)
        try:
            input = (await invocation.log()).state.input
            described = await invocation.handle.describe()
        except (RPCError, ForeignHistory, StoreFailed):
            return []
        is_visible = input is not None and sees_invocation(login, input.requesters, input.tenant)
        return [await read_entry(described)] if is_visible else []

    async def _find_scope(self, login: Login) -> JsonObject | None:
        """Return the filters for the invocations that a login may see, or None if they cannot be searched."""
        tenant = login.verified.tenant if login.verified else None
        scope: JsonObject = {} if tenant is None else {"tenant": tenant}
        if "viewer" not in login.roles:
            if not is_requester(login, (login.subject,)):
                return None
            scope["user_id"] = login.subject
        if not all(is_quotable(name) and len(name) < MAX_KEYWORD for name in scope.values()):
            return None
        if not sees_everything(login) and not await self._client.searchable(tenant):
            return None
        return scope

    async def _read(
        self, filters: ListFilters, scope: JsonObject | None, now: datetime, status: str = ""
    ) -> tuple[list[InvocationEntry], bool]:
        """Return the newest invocations that match the filters for visibility, and whether there are more.

        Raises:
            Refused: A filter cannot be searched for.
        """
        if scope is None or filters.user not in ("", scope.get("user_id", filters.user)):
            return [], False
        try:
            return await self._reader.read(filters.conditions(now), scope, status=status, keep=bool(filters.called))
        except ValueError as error:
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "InvalidRequest", str(error)) from None
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "InvalidRequest", LACKING) from None
