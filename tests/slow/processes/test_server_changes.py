"""Servers that are replaced, or that lose Waystation's search attributes, while workers and clients are running."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.service import RPCError

from tests.server.processes.ledger import Ledger
from tests.server.processes.workers import Place, Process, plan, until
from tests.slow.processes.plain_servers import plain_server
from waystation.client import SEARCH_ATTRIBUTE_TYPES, add_search_attributes
from waystation.client.agent_client import AgentClient
from waystation.client.agent_directory import AgentDirectory
from waystation.core.errors import UnknownInvocation
from waystation.core.payload import JsonObject
from waystation.embedded import EmbeddedServer

PAY = plan([("pay", {"amount": 5})])
REMEMBER = plan([("remember", {"word": "x"})])


def changes(worker: Process) -> list[JsonObject]:
    """Return what a worker logged about search attributes."""
    return [line for line in worker.logs if line["event"].startswith("search_attributes.")]


async def test_an_empty_database_stops_neither_workers_nor_clients(tmp_path: Path) -> None:
    """The worker logs the outage. New invocations complete without search attributes, which the worker logs, too."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    place = Place(address=f"127.0.0.1:{port}", task_queue="waystation", ledger=Ledger(tmp_path))
    async with contextlib.AsyncExitStack() as stack:
        async with EmbeddedServer(port=port):
            worker = await stack.enter_async_context(place.worker())
            client = await place.client()
            assert (await client.run("planned", REMEMBER)).status == "completed"
            lost = asyncio.create_task((await client.start("planned", PAY)).result())
        await worker.logged("server.unavailable")
        async with plain_server(port) as server:
            assert server.running, server.other
            with pytest.raises(UnknownInvocation, match="the server's database was emptied"):
                await lost
            await worker.logged("server.available")
            invocation = await client.start("planned", PAY)
            await until(invocation.pending, "a call to confirm")
            await invocation.approve()
            assert (await invocation.result()).text == '[["pay", {"paid": 5}]]'
            assert [line["event"] for line in changes(worker)] == ["search_attributes.missing"]
            await until(AgentDirectory(client.temporal).read, "the agents of the worker")
            assert await worker.stop() == 0


async def test_lost_search_attributes_stop_no_open_invocation(tmp_path: Path) -> None:
    """Invocations and sessions that used them continue without them, and use them again once they are back."""
    async with EmbeddedServer() as server:
        place = Place(address=server.address, task_queue="waystation", ledger=Ledger(tmp_path))
        client = await place.client()
        async with place.worker() as worker:
            invocation = await client.start("planned", plan([("pay", {"amount": 1})], [("pay", {"amount": 2})]))
            session = client.session(agent="planned", session_id="s")
            await session.send(PAY)
            await until(invocation.pending, "a call to confirm")
            await remove_search_attributes(client)
            await invocation.approve("fc-1")
            await until(lambda: is_pending(client, invocation.id, "fc-2"), "the second call")
            [call] = [call for call in await client.pending() if call.invocation_id != invocation.id]
            await client.invocation(call.invocation_id).approve()
            assert (await (await session.send(REMEMBER)).result()).status == "completed"
            await worker.logged("search_attributes.missing")
            await add_search_attributes(client.temporal, SEARCH_ATTRIBUTE_TYPES)
            await worker.logged("search_attributes.found")
            await invocation.approve("fc-2")
            assert (await invocation.result()).status == "completed"
            assert (await client.run("planned", REMEMBER)).status == "completed"
        assert [line["event"] for line in changes(worker)] == ["search_attributes.missing", "search_attributes.found"]


async def is_pending(client: AgentClient, invocation_id: str, call_id: str) -> bool:
    """Return whether this call is the one that the invocation lists."""
    calls = await client.invocation(invocation_id).pending()
    return [call.function_call_id for call in calls] == [call_id]


async def remove_search_attributes(client: AgentClient) -> None:
    """Remove them, as an operator could by mistake, and wait until the server refuses to use them."""
    request = RemoveSearchAttributesRequest(
        namespace=client.temporal.namespace, search_attributes=list(SEARCH_ATTRIBUTE_TYPES)
    )
    await client.temporal.operator_service.remove_search_attributes(request)

    async def are_refused() -> bool:
        try:
            await client.temporal.count_workflows("WaystationAgent = 'planned'")
        except RPCError:
            return True
        return False

    await until(are_refused, "the refusal of a search attribute")
