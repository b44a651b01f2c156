"""Read lists of invocations from visibility, once for all browsers that ask for the same list."""

from collections.abc import Mapping
from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from waystation.client import AgentClient, InvocationEntry, fold_called, is_quotable
from waystation.web.shared_reads import SharedReads

MOST = 1_000
"""Maximum number of invocations that one list sorts and counts."""
MAX_AGE_S = 2.0
"""Age up to which a list that was read before is shown again."""
MAX_IDS = 100
"""Maximum number of callers to look up by ID."""
BOUNDS = {"since", "until"}
"""The filters that depend on the time."""

Entries = tuple[InvocationEntry, ...]


class InvocationReader:
    """Reads the newest invocations that match filters, with what the agents that they called wait for."""

    def __init__(self, client: AgentClient, reads: SharedReads) -> None:
        self._client, self._reads = client, reads

    async def read(
        self, conditions: Mapping[str, Any], scope: Mapping[str, str], *, status: str = "", keep: bool = False
    ) -> tuple[list[InvocationEntry], bool]:
        """Return invocations, most recently started first, and whether there are more.

        Args:
            conditions: The filters of the list, for `Invocations.list`.
            scope: The invocations that the reader of the list may see, likewise.
            status: Only invocations with this status.
            keep: Whether to return called agents, too.

        Raises:
            ValueError: A filter cannot be searched for.
            RPCError: The namespace lacks the search attributes that a filter needs.
        """
        names = {**conditions, **scope, **({"status": status} if status else {})}
        # An age is relative to the time, so its bound differs each time. One of the same 10 seconds is close enough.
        key = tuple(
            f"{name}={value if name not in BOUNDS else value.timestamp() // 10}" for name, value in names.items()
        )
        found = await self._list(key, limit=MOST, **names)
        has_more = len(found) == MOST
        called: Entries = ()
        if has_more or status or conditions.get("agent") or conditions.get("search") or BOUNDS & conditions.keys():
            called = await self._read_called(scope)
        if status == "waiting":
            found = (*found, *await self._read_callers(key, called, found, {**conditions, **scope}))
        return fold_called(found, others=called, keep=keep), has_more

    async def _read_called(self, scope: Mapping[str, str]) -> Entries:
        """Return the called agents that wait, even those that the filters of a list do not match."""
        key = "called", *(f"{name}={value}" for name, value in scope.items())
        try:
            return await self._reads.read_list(
                key, lambda: self._client.invocations.list_waiting_called(**scope, limit=MOST), max_age_s=MAX_AGE_S
            )
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            return ()  # without search attributes, no filter leaves out a called agent

    async def _read_callers(
        self, key: tuple[str, ...], called: Entries, found: Entries, names: Mapping[str, Any]
    ) -> Entries:
        """Return the invocations that wait only inside a called agent, which visibility lists as running."""
        known = {entry.id for entry in found}
        ids = [id for id in dict.fromkeys(entry.root_id for entry in called) if id not in known and is_quotable(id)]
        if not ids:
            return ()
        chosen = ids[:MAX_IDS]
        return await self._list((*key, *chosen), ids=chosen, **names)

    async def _list(self, key: tuple[str, ...], **names: Any) -> Entries:
        return await self._reads.read_list(key, lambda: self._client.invocations.list(**names), max_age_s=MAX_AGE_S)
