"""Workers release the resources of their toolsets."""

from tests.server.processes.workers import Place
from waystation.client.agent_client import AgentClient


async def test_a_worker_closes_its_toolsets_before_it_ends(place: Place, client: AgentClient) -> None:
    """A worker closes each toolset once, after the last tool."""
    async with place.worker() as worker:
        invocation = await client.start("equipped", "measure")
        assert (await invocation.result()).text == "done"
        assert place.ledger.lines("closed") == []
        assert await worker.stop() == 0
    assert len(place.ledger.lines("closed")) == 1
    assert worker.life == ["worker.ready", "worker.draining", "worker.stopped"]
