"""What a process knows about the search attributes of a namespace, and what it asks for that."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from waystation.client import SEARCH_ATTRIBUTE_TYPES, SearchAttributeMonitor, agent_client, search_attributes
from waystation.client.agent_client import AgentClient
from waystation.core import SEARCH_TENANT
from waystation.worker import plugin

ALL = tuple(SEARCH_ATTRIBUTE_TYPES)


def refuse(status: RPCStatusCode) -> RPCError:
    """Return the error of a refused request."""
    return RPCError("Request unauthorized.", status, b"")


class Namespace:
    """A Temporal client whose server knows some search attributes."""

    def __init__(self, names: Sequence[str] = ALL, *, lists: bool = True, counts: bool = True) -> None:
        self.names, self.lists, self.counts, self.requests = names, lists, counts, list[str]()
        self.namespace, self.operator_service = "default", self

    async def list_search_attributes(self, _request: Any, **_options: Any) -> Any:
        """Return the types of the search attributes."""
        self.requests.append("list")
        if not self.lists:
            raise refuse(RPCStatusCode.PERMISSION_DENIED)
        return SimpleNamespace(custom_attributes={name: SEARCH_ATTRIBUTE_TYPES[name] for name in self.names})

    async def count_workflows(self, query: str, **_options: Any) -> int:
        """Accept a query of known search attributes."""
        self.requests.append("count")
        if not self.counts:
            raise refuse(RPCStatusCode.PERMISSION_DENIED)
        if any(part.split()[0] not in self.names for part in query.split(" AND ")):
            raise refuse(RPCStatusCode.INVALID_ARGUMENT)
        return 0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock of clients."""
    clock = SimpleNamespace(at=1_000.0)
    monkeypatch.setattr(agent_client, "time", SimpleNamespace(monotonic=lambda: clock.at))
    return lambda seconds: setattr(clock, "at", 1_000.0 + seconds)


async def test_a_client_looks_once_a_minute(now: Callable[[float], None]) -> None:
    """Not for each list, but what is created or removed later counts without a new client."""
    server = Namespace(())
    client = AgentClient(server)  # type: ignore[arg-type]  # only what it asks here
    answers = []
    for at, names in [(0, ()), (4, ALL), (6, ALL), (60, ()), (65, ()), (67, ()), (71, ALL)]:
        now(at)
        server.names = names
        answers.append((await client.searchable(), len(server.requests)))
    assert answers == [(False, 1), (False, 1), (True, 2), (True, 2), (True, 2), (False, 3), (False, 3)]
    assert await client.searchable(again=True)


@pytest.mark.parametrize(
    ("server", "without_tenant", "with_tenant", "requests"),
    [
        (Namespace(), True, True, ["list"]),
        (Namespace(lists=False), True, True, ["list", "count"]),
        (Namespace([name for name in ALL if name != SEARCH_TENANT], lists=False), True, False, None),
        (Namespace((), lists=False), False, False, None),
        (Namespace(lists=False, counts=False), None, None, None),
    ],
    ids=["listed", "queried", "without tenants", "none", "unknown"],
)
async def test_queries_tell_what_the_server_refuses_to_list(
    server: Namespace, without_tenant: bool | None, with_tenant: bool | None, requests: list[str] | None
) -> None:
    """Missing and unknown are different answers. A query is enough if nothing is missing."""
    client = AgentClient(server)  # type: ignore[arg-type]
    assert await client.searchable() is without_tenant
    assert requests in (None, server.requests)
    assert await client.searchable("acme") is with_tenant


async def test_a_worker_says_that_the_search_attributes_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so once, with the server's reason, and does not count them as missing."""
    monitor = SearchAttributeMonitor(Namespace(lists=False, counts=False))  # type: ignore[arg-type]
    logs = list[tuple[str, str]]()
    warn = SimpleNamespace(warning=lambda event, reason, **_: logs.append((event, reason)))
    monkeypatch.setattr(search_attributes, "log", warn)
    await monitor.refresh()
    await monitor.refresh()
    assert logs == [("search_attributes.unknown", "PERMISSION_DENIED")]
    assert not monitor.is_interrupted  # so it is not asked more often


@pytest.mark.parametrize("sign", ["warning of the core", "failed check"])
async def test_an_idle_worker_checks_once_a_minute_unless_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    """Workers that started together do not check together."""
    monkeypatch.setattr(plugin, "TROUBLE_S", 0.0)
    server, checked, trouble = Namespace(), asyncio.Event(), asyncio.Event()
    monitor, jitter = SearchAttributeMonitor(server), list[tuple[float, float]]()  # type: ignore[arg-type]
    await monitor.refresh()

    async def announce(*, again: bool) -> None:
        assert again
        checked.set()

    def choose(low: float, high: float) -> float:
        jitter.append((low, high))
        return 3_600.0

    if sign == "failed check":
        server.lists = server.counts = False
        await monitor.refresh()
    else:
        trouble.set()
    checking = asyncio.create_task(plugin._keep_refreshing(monitor, announce, trouble, choose))
    await checked.wait()
    checking.cancel()
    assert plugin.REFRESH_S == 60
    assert server.requests.count("list") >= 2
    assert (jitter[:1] == [(0.8, 1.2)]) is (sign == "warning of the core")
