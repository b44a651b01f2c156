"""How long one tenant's invocations take while another tenant floods the workers."""

import asyncio
import time

from benchmarks.comparison import Plan
from benchmarks.engine import worker
from benchmarks.table import Row, ratio
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer

AGENT = "talker"
MODEL_S = "2 0.02"
"""The model of the agent replies after two seconds."""
FLOOD, QUICK_FLOOD = 5_000, 1_000
STARTS = 100
"""The number of invocations of the flood that are started at the same time."""


async def measure(plan: Plan) -> list[Row]:
    """Compare the latency of a tenant alone with its latency behind the backlog of another tenant, on one worker."""
    flood = QUICK_FLOOD if plan.quick else FLOOD
    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue="tenants")
        async with worker(client, AGENT):
            await latencies_s(client, 1)
            alone_s = await latencies_s(client, plan.pairs)
        for _ in range(0, flood, STARTS):
            await asyncio.gather(*(client.start(AGENT, MODEL_S, tenant="acme") for _ in range(STARTS)))
        async with worker(client, AGENT):
            await latencies_s(client, 1)
            flooded_s = await latencies_s(client, plan.pairs)
            waiting = (await client.temporal.count_workflows("ExecutionStatus = 'Running'")).count
    return [
        ratio(
            "latency of a tenant while another floods",
            [seconds * 1e3 for seconds in alone_s],
            [seconds * 1e3 for seconds in flooded_s],
            unit_of_sides="ms",
            goal=2.0,
            note=f"{flood:,} invocations of the other tenant at the start, {waiting:,} still open at the end",
        )
    ]


async def latencies_s(client: AgentClient, count: int) -> list[float]:
    """Run invocations of a tenant, one after another, and return how long each takes."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await client.run(AGENT, MODEL_S, tenant="globex")
        times.append(time.perf_counter() - started)
    return times
