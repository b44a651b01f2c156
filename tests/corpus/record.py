"""Record the scenarios that have no history yet: `python -m tests.corpus.record`. Kept histories are left alone."""

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.worker import Worker

from tests.corpus import conversations
from tests.corpus.machine import without_machine
from tests.corpus.scenarios import SCENARIOS, Scenario
from waystation.client.agent_client import Invocation
from waystation.core.contract import WORKFLOW
from waystation.embedded import EmbeddedServer
from waystation.history import find_run_id
from waystation.storage import Blobs
from waystation.storage.blobs import BlobMissing
from waystation.testing import AgentEnvironment, assert_projection_matches, assert_replays

HERE = Path(__file__).parent


async def record(name: str, scenario: Scenario, server: EmbeddedServer) -> None:
    """Play a scenario, and keep its history and those of its called agents."""
    options: dict[str, Any] = {
        "task_queue": f"record-{name}",
        "offload_over": scenario.offload_over,
        "max_cached_workflows": 10,  # without a cache, no call runs as a local activity
    }
    async with AgentEnvironment(scenario.agent(), server=server, **options) as env:
        if scenario.start is None:
            invocation = await env.client.start("clerk", "go", id=name, state={"seed": 1})
        else:
            handle = await env.temporal.start_workflow(WORKFLOW, scenario.start, id=name, task_queue=f"record-{name}")
            invocation = Invocation(env.client, handle)
        await scenario.act(env, invocation)
        status = (await invocation.handle.describe()).status
        assert status is scenario.ends, f"{name} is {status}, not {scenario.ends}"
        # Queries need a worker, and the scenario may have stopped its own.
        worker = Worker(**env.worker.config()) if env.worker.is_shutdown else contextlib.nullcontext()
        async with worker:
            await keep(name, invocation)
            if scenario.child:
                await keep(f"{name}-child", env.client.invocation(f"{name}/fc-1"))
            if scenario.fork:
                fork = await env.client.forks.start(name, scenario.fork, id=f"{name}-fork")
                await fork.result()
                first, _ = await fork.histories()
                await keep(f"{name}-fork-begins", env.client.invocation(fork.id, run_id=find_run_id(first.events)))
                await keep(f"{name}-fork", fork)
        await keep_payloads(await invocation.history(), env.client.blobs)


async def keep_payloads(history: WorkflowHistory, blobs: Blobs) -> None:
    """Copy the payloads of a history into the store of the kept ones."""
    recorded = history.to_json_dict()
    for digest in set(re.findall(r'"digest": ?"([0-9a-f]{64})"', "".join(_payloads(recorded)))):
        with contextlib.suppress(BlobMissing):  # the scenario also refers to a payload that no store has
            await Blobs(HERE / "store").put(await blobs.get(digest))


def _payloads(value: object) -> Iterator[str]:
    match value:
        case {"metadata": _, "data": str(data)}:
            yield base64.b64decode(data).decode()
        case dict() | list():
            for item in value.values() if isinstance(value, dict) else value:
                yield from _payloads(item)


async def keep(name: str, invocation: Invocation) -> None:
    """Write a history and the state of its workflow."""
    history = await invocation.history()
    await assert_replays(history, invocation.converter)
    await assert_projection_matches(invocation)
    held = {query: await invocation.handle.query(query) for query in ("events", "state", "pending")}
    (HERE / f"{name}.json").write_text(json.dumps(without_machine(history.to_json_dict()), indent=1) + "\n")
    (HERE / f"{name}.held.json").write_text(json.dumps({"id": invocation.id, **held}, indent=1) + "\n")


async def main() -> None:
    """Record the missing histories."""
    missing = {name: scenario for name, scenario in SCENARIOS.items() if not (HERE / f"{name}.json").exists()}
    unheard = [name for name in conversations.CONVERSATIONS if not any(conversations.HERE.glob(f"{name}.0*.json"))]
    if missing or unheard:
        async with EmbeddedServer() as server:
            for name, scenario in missing.items():
                print(name)  # noqa: T201  # a program
                await asyncio.wait_for(record(name, scenario, server), 20)
            for name in unheard:
                print(name)  # noqa: T201  # a program
                await conversations.record(name, conversations.CONVERSATIONS[name], server)


if __name__ == "__main__":
    asyncio.run(main())
