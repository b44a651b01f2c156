"""A process remembers the search attributes of a namespace, and seldom asks for them."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from temporalio.service import RPCError, RPCStatusCode

from waystation.client import SEARCH_ATTRIBUTE_TYPES, SearchAttributeMonitor, agent_client
from waystation.client.agent_client import AgentClient
from waystation.core.contract import SEARCH_TENANT
from waystation.worker import plugin

ALL = tuple(SEARCH_ATTRIBUTE_TYPES)


class Namespace:
    """A fake client whose server has some search attributes, and may refuse to list and to query them."""

    def __init__(self, names: Sequence[str] = ALL, *, refuses: Sequence[str] = ()) -> None:
        self.names, self.refuses, self.requests = names, refuses, list[str]()
        self.namespace, self.operator_service = "default", self

    async def list_search_attributes(self, _request: Any, **_options: Any) -> Any:
        """Return the types of the search attributes."""
        self.check("list")
        return SimpleNamespace(custom_attributes={name: SEARCH_ATTRIBUTE_TYPES[name] for name in self.names})

    async def count_workflows(self, query: str, **_options: Any) -> None:
        """Accept a query of known search attributes."""
        self.check("count")
        if any(part.split()[0] not in self.names for part in query.split(" AND ")):
            raise RPCError("", RPCStatusCode.INVALID_ARGUMENT, b"")

    def check(self, request: str) -> None:
        """Refuse a request as the server would."""
        self.requests.append(request)
        if request in self.refuses:
            raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")


async def test_a_client_looks_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client lists search attributes at most once a minute, and finds changes without a new client."""
    server, answers = Namespace(()), list[tuple[bool | None, int]]()
    client = AgentClient(server)  # type: ignore[arg-type]  # only what it asks here
    for at, names in [(0, ()), (4, ALL), (6, ALL), (60, ()), (65, ()), (67, ()), (71, ALL)]:
        monkeypatch.setattr(agent_client, "time", SimpleNamespace(monotonic=lambda at=at: 1_000.0 + at))
        server.names = names
        answers.append((await client.searchable(), len(server.requests)))
    assert answers == [(False, 1), (False, 1), (True, 2), (True, 2), (True, 2), (False, 3), (False, 3)]
    assert await client.searchable(again=True)


@pytest.mark.parametrize(
    ("server", "without_tenant", "with_tenant", "requests"),
    [
        (Namespace(), True, True, 1),
        (Namespace(refuses=["list"]), True, True, 2),
        (Namespace([name for name in ALL if name != SEARCH_TENANT], refuses=["list"]), True, False, 2 + len(ALL)),
        (Namespace((), refuses=["list"]), False, False, 2 + len(ALL)),
        (Namespace(refuses=["list", "count"]), None, None, 2),
    ],
    ids=["listed", "queried", "without tenants", "none", "unknown"],
)
async def test_queries_tell_what_the_server_refuses_to_list(
    server: Namespace, without_tenant: bool | None, with_tenant: bool | None, requests: int
) -> None:
    """A server that refuses to list attributes reveals them by queries.

    A server that refuses both is not asked more often.
    """
    client, monitor = AgentClient(server), SearchAttributeMonitor(server)  # type: ignore[arg-type]
    assert (await client.searchable(), len(server.requests)) == (without_tenant, requests)
    assert await client.searchable("acme") is with_tenant
    await monitor.refresh()
    assert (monitor.is_available(), monitor.is_interrupted) == (bool(without_tenant), False)


@pytest.mark.parametrize("is_away", [False, True])
async def test_an_idle_worker_checks_once_a_minute_unless_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    """A worker checks once a minute, or at once if Temporal's core warns or a check fails.

    Workers that start together check separately.
    """
    monkeypatch.setattr(plugin, "TROUBLE_S", 0.0)
    server, checked, trouble, jitter = Namespace(), asyncio.Event(), asyncio.Event(), Mock(return_value=3_600.0)
    monitor = SearchAttributeMonitor(server)  # type: ignore[arg-type]
    await monitor.refresh()
    if is_away:
        server.refuses = ["list", "count"]
        await monitor.refresh()
    else:
        trouble.set()

    async def announce(*, again: bool) -> None:
        checked.set()

    checking = asyncio.create_task(plugin._keep_refreshing(monitor, announce, trouble, jitter))
    await checked.wait()
    checking.cancel()
    assert (plugin.REFRESH_S, server.requests.count("list")) == (60, 3 if is_away else 2)
    assert is_away or jitter.call_args.args == (0.8, 1.2)
