"""The calls of the inbox: read the pending calls once for all browsers, then filter, sort and count them for each."""

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from waystation.approvers import sees_call
from waystation.client import AgentClient, ApprovalFilter, Page
from waystation.core.approval import PendingCall
from waystation.web.list_query import ListQuery
from waystation.web.logins import Login
from waystation.web.shared_reads import SharedReads

READ_LIMIT = 2_000
"""Maximum number of calls to read, those of the most recently started invocations first."""
MAX_AGE_S = 1.0
"""Age up to which calls that were read before are shown again."""
ANSWERED_S = 30.0
"""How long a call that was answered here stays out of the list. Visibility reports the answer within that time."""

Show = Literal["", "mine", "free", "claimed", "machines"]
SPANS: Mapping[str, timedelta] = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}
ORDERS: Mapping[str, Callable[[PendingCall], float]] = {
    "newest": lambda call: -call.requested_at,
    "oldest": lambda call: call.requested_at,
    "deadline": lambda call: call.deadline,
}


@dataclass(frozen=True, kw_only=True)
class InboxQuery(ListQuery):
    """The filters, the order and the page of the inbox. A call must contain the words of the search, in any order."""

    sort: str = "newest"
    """A key of `ORDERS`."""
    agent: str = ""
    tool: str = ""
    user: str = ""
    show: str = ""
    """One of `Show`."""
    age: str = ""
    """A key of `SPANS`: only calls that have waited for longer."""
    unknown: str = ""
    """`1` for the calls whose outcome is unknown instead of all others."""
    due: str = ""
    """A key of `SPANS`: only calls whose deadline is sooner."""

    choices = {"show": get_args(Show), "age": SPANS, "due": SPANS, "sort": ORDERS, "unknown": ("", "1")}
    ignores_unknown = True

    def accepts(self, call: PendingCall, now: float) -> bool:
        """Return whether a call meets all filters except `show`."""
        due = SPANS.get(self.due)
        older_than = SPANS.get(self.age)
        filter = ApprovalFilter(
            tool=self.tool or None, user_id=self.user or None, older_than=older_than, unknown=bool(self.unknown)
        )
        return (
            self.agent in ("", call.agent)
            and filter.matches(call, searchable=True, now=now)
            and (due is None or call.deadline <= now + due.total_seconds())
            and (not self.q or _contains(call, self.q.casefold().split()))
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """The calls that an inbox shows to one person, in order."""

    calls: tuple[PendingCall, ...]
    counts: Mapping[str, int]
    """The number of calls for each value of `show`, with all other filters applied."""
    options: Mapping[str, tuple[tuple[str, int], ...]]
    """The values of the filters `agent`, `tool` and `user`, each with the number of calls that the person sees."""
    waiting: int
    """The number of calls that the person may answer, without filters."""
    complete: bool
    """Whether all pending calls were read."""

    def find_neighbors(self, approval_id: str) -> "Neighbors":
        """Return the position of a call in the list, and the calls before and after it."""
        ids = [call.approval_id for call in self.calls]
        if approval_id not in ids:
            return Neighbors(count=len(ids), following=ids[0] if ids else None)
        at = ids.index(approval_id)
        following = ids[at + 1] if at + 1 < len(ids) else None
        return Neighbors(at + 1, len(ids), ids[at - 1] if at else None, following)

    @property
    def version(self) -> str:
        """A digest that changes whenever the list changes for the reader."""
        shown = [
            (c.approval_id, c.digest, c.claimed_by, c.approved_by, c.deadline, c.level, c.progress_at)
            for c in self.calls
        ]
        return hashlib.sha256(json.dumps([shown, dict(self.counts)]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The place of a call in the list."""

    position: int | None = None
    count: int = 0
    previous: str | None = None
    following: str | None = None


def select(calls: Iterable[PendingCall], query: InboxQuery, login: Login, *, complete: bool = True) -> Selection:
    """Return the calls that a person may see and that a query matches, sorted."""
    now = time.time()
    may_answer = ApprovalFilter(person=tuple(login.names), unknown=bool(query.unknown))
    shows: dict[str, Callable[[PendingCall], bool]] = {
        "": lambda call: call.machine is None,
        "mine": lambda call: may_answer.matches(call, searchable=True, now=now),
        "free": lambda call: call.claimed_by is None and call.machine is None,
        "claimed": lambda call: call.claimed_by in login.names,
        "machines": lambda call: call.machine is not None,
    }
    visible = [call for call in calls if sees_call(login, call)]
    matches = [call for call in visible if query.accepts(call, now)]
    return Selection(
        calls=tuple(sorted(filter(shows[query.show], matches), key=ORDERS[query.sort])),
        counts={show: sum(map(accepts, matches)) for show, accepts in shows.items()},
        options={
            "agent": _count(call.agent for call in visible),
            "tool": _count(call.tool for call in visible),
            "user": _count(call.user_id for call in visible),
        },
        waiting=sum(map(shows["mine"], visible)),
        complete=complete,
    )


def _count(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(names).items()))


def _contains(call: PendingCall, words: Iterable[str]) -> bool:
    names = (call.title, call.tool, call.agent, call.user_id, call.requester, call.approval_id, call.claimed_by)
    text = " ".join((*filter(None, names), call.hint, json.dumps(call.args, ensure_ascii=False))).casefold()
    return all(word in text for word in words)


class PendingList:
    """The pending calls, read from visibility at most once a second."""

    def __init__(self, client: AgentClient, reads: SharedReads) -> None:
        self._client, self._reads = client, reads
        self._answered: dict[tuple[str, float], float] = {}
        """When each call was answered here, by approval ID and the time at which the call started to wait."""
        self._changed = asyncio.Event()

    async def select(self, login: Login, query: InboxQuery, *, max_age_s: float = MAX_AGE_S) -> Selection:
        """Return the calls that a person may see and that a query matches.

        Raises:
            RPCError: The Temporal server does not respond.
        """
        tenant = (login.verified.tenant or None) if login.verified else None
        kind: dict[str, Any] = {"unknown": True} if query.unknown else {}
        found = await self._read(max_age_s, tenant=tenant, **kind)
        if found.next and (query.agent or query.user):
            by = {"agent": query.agent or None, "user_id": query.user or None}
            found = await self._read(max_age_s, tenant=tenant, **by, **kind)
        now = time.monotonic()
        self._answered = {key: at for key, at in self._answered.items() if now - at < ANSWERED_S}
        calls = [call for call in found.calls if (call.approval_id, call.requested_at) not in self._answered]
        return select(calls, query, login, complete=found.next is None)

    async def _read(self, max_age_s: float, **filters: Any) -> Page:
        key = "pending", *filters.items()
        return await self._reads.read(
            key,
            lambda: self._client.approvals.list(limit=READ_LIMIT, machines=None, **filters),
            max_age_s=max_age_s,
        )

    def forget(self, call: PendingCall) -> None:
        """Leave out a call that was just answered, because visibility may still list the call for a second."""
        self._answered[call.approval_id, call.requested_at] = time.monotonic()
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait until a call is answered here, or for a time."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
