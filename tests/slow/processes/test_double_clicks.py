"""No answer is lost or counts twice when people click twice while workers are killed."""

import asyncio
from collections import Counter

from tests.server.conftest import verify_tree
from tests.server.processes.workers import Place, plan
from waystation.client.agent_client import AgentClient
from waystation.core.errors import AlreadyAnswered, AnswerUnconfirmed, UnknownCall
from waystation.core.log import AnswerCounted

CALLS = 24
APPROVERS = 4
KILLS = 3


async def click(client: AgentClient, approval_id: str) -> None:
    """Approve a call, and repeat it until the outcome is known."""
    while True:
        try:
            await client.approvals.approve(approval_id)
        except AnswerUnconfirmed:
            continue
        except (AlreadyAnswered, UnknownCall):
            return
        return


async def test_answers_during_crashes_count_once_each(place: Place) -> None:
    """Every call has one answer that counted, and its tool ran at most once."""
    client = await place.client()
    place.ledger.open("open")
    async with place.worker() as worker:
        steps = plan([("hold_confirmed", {"gate": "open"})])
        waiting = await asyncio.gather(*(client.start("planned", steps) for _ in range(CALLS)))
        for invocation in waiting:
            while not await invocation.pending():
                await asyncio.sleep(0.02)
        left = iter(waiting)

        async def approver() -> None:
            for invocation in left:
                name = f"{invocation.id}/fc-1"
                await asyncio.gather(click(client, name), click(client, name))

        people = asyncio.gather(*(approver() for _ in range(APPROVERS)))
        await worker.kill()
    for _ in range(KILLS - 1):
        async with place.worker() as worker:
            await asyncio.sleep(0)
            await worker.kill()
    async with place.worker():
        await people
        for invocation in waiting:
            await invocation.result()
        counted = [
            sum(isinstance(entry.body, AnswerCounted) for entry in (await invocation.log()).entries)
            for invocation in waiting
        ]
        await verify_tree(waiting[0])
    ran = Counter(line["key"] for line in place.ledger.lines("began"))
    assert counted == [1] * CALLS
    assert not [key for key, times in ran.items() if times > 1]
