"""Namespaces without Waystation's search attributes, with late ones, or with others of the same name."""

import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from tests.server.processes.ledger import Ledger
from tests.server.processes.workers import Place, plan, until
from tests.slow.processes.plain_servers import plain_server
from waystation.client import SEARCH_ATTRIBUTE_TYPES, has_search_attributes
from waystation.client.agent_client import AgentClient
from waystation.client.search_attributes import AGENT
from waystation.core.contract import SEARCH_TENANT

NAMESPACES = ("unsearchable", "later", "mistyped", "older")


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[str]:
    """Return the address of a server whose namespaces do not have Waystation's search attributes."""
    for _ in range(5):
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            port = listener.getsockname()[1]
        async with plain_server(port, *NAMESPACES) as server:
            if server.running:
                yield f"127.0.0.1:{port}"
                return
        # Another program took the port in the meantime.
    pytest.fail("The Temporal server ended at five different ports.")


async def in_namespace(name: str, address: str, folder: Path) -> tuple[Place, AgentClient]:
    """Return a place in a namespace of the plain server."""
    place = Place(
        address=address, task_queue="waystation", ledger=Ledger(folder), environment={"TEMPORAL_NAMESPACE": name}
    )
    return place, await place.client()


async def register(client: Client, types: dict[str, IndexedValueType.ValueType]) -> None:
    """Register search attributes, as an operator does."""
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
    await client.operator_service.add_search_attributes(request)


async def test_without_search_attributes_the_engine_works(address: str, tmp_path: Path) -> None:
    """The worker warns once at its start, with the remedy. Pending calls are still listed and answered."""
    place, client = await in_namespace("unsearchable", address, tmp_path)
    async with place.worker() as worker:
        invocation = await client.start("planned", plan([("pay", {"amount": 5})]))
        [waiting] = await until(client.pending, "a call to confirm")
        assert (waiting.invocation_id, waiting.args) == (invocation.id, {"amount": 5})
        await invocation.approve()
        assert (await invocation.result()).text == '[["pay", {"paid": 5}]]'
    warnings = [line for line in worker.logs if line["level"] != "info"]
    assert [(line["event"], line["namespace"], line["missing"], line["remedy"]) for line in warnings] == [
        ("search_attributes.missing", "unsearchable", sorted(SEARCH_ATTRIBUTE_TYPES), "run `waystation setup`")
    ]
    assert worker.other == []


async def test_search_attributes_that_come_later_are_used_after_a_restart(address: str, tmp_path: Path) -> None:
    """After a registration and a restart of the worker, new and older invocations are found by search attributes."""
    place, client = await in_namespace("later", address, tmp_path)
    async with place.worker() as before:
        older = await client.start("planned", plan([("pay", {"amount": 1})]))
        await until(older.pending, "a call to confirm")
        await before.stop()
    await register(client.temporal, SEARCH_ATTRIBUTE_TYPES)
    async with place.worker() as after:
        newer = await client.start("planned", plan([("pay", {"amount": 2})]))

        async def listed(query: str) -> list[str]:
            return sorted([execution.id async for execution in client.temporal.list_workflows(query)])

        await until(lambda: listed("WaystationPending = 'fc-1' AND WaystationStatus = 'waiting'"), "what waits")
        assert await listed("WaystationPending = 'fc-1'") == [newer.id]
        for invocation in (older, newer):
            await invocation.approve()
            await invocation.result()

        async def both() -> bool:
            return await listed("WaystationAgent = 'planned' AND WaystationUser = 'user'") == sorted(
                [older.id, newer.id]
            )

        await until(both, "both invocations")
        assert [line for line in after.logs if line["level"] != "info"] == []


async def test_a_search_attribute_of_another_type_is_not_used(address: str, tmp_path: Path) -> None:
    """The type must match, too, because a refused upsert would block the workflow forever."""
    place, client = await in_namespace("mistyped", address, tmp_path)
    await register(
        client.temporal, {**SEARCH_ATTRIBUTE_TYPES, "WaystationStatus": IndexedValueType.INDEXED_VALUE_TYPE_INT}
    )
    assert not await has_search_attributes(client.temporal)
    async with place.worker() as worker:
        assert (await client.run("planned", plan([("remember", {"word": "x"})]))).status == "completed"
        assert worker.events("search_attributes.missing")[0]["missing"] == ["WaystationStatus"]


async def test_an_older_namespace_lacks_only_the_search_attribute_of_tenants(address: str, tmp_path: Path) -> None:
    """Invocations without a tenant work as usual; those of tenants are listed without search attributes."""
    place, client = await in_namespace("older", address, tmp_path)
    older = {name: kind for name, kind in SEARCH_ATTRIBUTE_TYPES.items() if name != SEARCH_TENANT}
    await register(client.temporal, older)
    assert await has_search_attributes(client.temporal)
    assert not await has_search_attributes(client.temporal, "acme")
    async with place.worker() as worker:
        plain = await client.start("planned", plan([("pay", {"amount": 1})]))
        by_client = await client.start("planned", plan([("pay", {"amount": 2})]), tenant="acme")
        params = {"agent": "planned", "message": plan([("pay", {"amount": 3})]), "tenant": "acme"}
        handle = await client.temporal.start_workflow(
            "AgentInvocation",
            params,
            id="raw",
            task_queue=client.task_queue,
            search_attributes=TypedSearchAttributes([SearchAttributePair(AGENT, "planned")]),
        )

        async def all_wait() -> list[str]:
            found = sorted([call.invocation_id async for call in client.approvals.each()])
            return found if len(found) == 3 else []

        await until(all_wait, "three calls")
        found = {call.invocation_id async for call in client.approvals.each(tenant="acme")}
        assert found == {by_client.id, handle.id}
        for invocation in (plain, by_client, client.invocation(handle.id)):
            await invocation.approve()
            await invocation.result()
        attributes = {
            invocation.id: dict((await invocation.handle.describe()).search_attributes)
            for invocation in (plain, by_client)
        }
        assert attributes[plain.id]["WaystationAgent"] == ["planned"]
        assert "WaystationAgent" not in attributes[by_client.id]
    [warning] = [line for line in worker.logs if line["level"] != "info"]
    assert warning["missing"] == ["WaystationTenant"]
    assert worker.other == []
