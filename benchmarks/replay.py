"""The deployment check over many open invocations, and reading a very long history."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from benchmarks.approvals import QUEUE, start_waiting
from benchmarks.comparison import Plan
from benchmarks.engine import ROOT, worker
from benchmarks.long_history import long_history
from benchmarks.table import Row, ratio
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.history import SavedHistory, build_log, format_saved_history
from waystation.replay import Recording, gate
from waystation.replay.deployment_gate import OPEN
from waystation.workflows.invocation import AgentInvocation

PROCESSES = 2
LONG = 50_000


async def measure_gate(plan: Plan) -> list[Row]:
    """Compare the deployment check with Temporal's replayer; both fetch what they replay."""
    count, turns = (100, 3) if plan.quick else (1_000, 5)
    async with EmbeddedServer() as server:
        client = AgentClient(await connect(address=server.address), task_queue=QUEUE)
        async with worker(client):
            await start_waiting(client, count)
        bare, checked = list[float](), list[float]()
        for _ in range(turns):
            bare.append(await _replay_plainly(client.temporal, count))
            checked.append(await _gate(client, count))
    return [
        ratio(
            f"deployment check of {count:,} open invocations",
            bare,
            checked,
            unit_of_sides="s",
            goal=2,
            note=f"{PROCESSES} processes, from their start; floor: Temporal's `Replayer`",
        ),
        Row(
            name="… per minute",
            samples=[60 * count / seconds for seconds in checked],
            unit="invocations",
            goal=1_000,
            at_least=True,
        ),
    ]


async def _replay_plainly(client: Client, waiting: int) -> float:
    started = time.perf_counter()
    replayer = Replayer(workflows=[AgentInvocation], workflow_runner=UnsandboxedWorkflowRunner())
    count = 0
    async with replayer.workflow_replay_iterator(client.list_workflows(OPEN).map_histories()) as results:
        async for result in results:
            assert result.replay_failure is None
            count += 1
    assert count == waiting
    return time.perf_counter() - started


async def _gate(client: AgentClient, waiting: int) -> float:
    started = time.perf_counter()
    report = await gate(client, processes=PROCESSES)
    assert report.passes
    assert report.checked == waiting, f"{report.checked} instead of {waiting}"
    return time.perf_counter() - started


async def measure_reading(plan: Plan) -> list[Row]:
    """Read a long history from a file, in a separate process, so that its memory can be measured."""
    events = 5_000 if plan.quick else LONG
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "long.json")
        size = _write(file, events)
        command = [sys.executable, "-m", "benchmarks.replay", str(file)]
        process = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, check=True)
    measured = json.loads(process.stdout)
    return [
        Row(
            name=f"a history of {events:,} events is read",
            samples=[measured["opened_s"]],
            unit="s",
            note=f"from a file of {size / 1e6:.1f} MB; {measured['peak_mb'] - measured['before_mb']:.0f} MB of memory "
            f"more than the {measured['before_mb']:.0f} MB of an idle process",
        ),
        Row(
            name="events projected per second",
            samples=measured["projected"],
            unit="events",
            goal=10_000,
            at_least=True,
        ),
    ]


def _write(file: Path, events: int) -> int:
    return file.write_text(json.dumps(format_saved_history(SavedHistory([long_history(events, size=300)]))))


async def _read(file: Path) -> dict[str, float | list[float]]:
    before = _memory_mb()
    started = time.perf_counter()
    recording = await Recording.read(file)
    opened_s, peak = time.perf_counter() - started, _memory_mb()
    events = sum(len(history.events) for history in recording.histories)
    paces = []
    for _ in range(5):
        started = time.perf_counter()
        build_log(recording.histories)
        paces.append(events / (time.perf_counter() - started))
    return {"before_mb": before, "peak_mb": peak, "opened_s": opened_s, "projected": paces}


def _memory_mb() -> float:
    """Return the peak memory of this process; `getrusage` would include the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line for line in lines if line.startswith("VmHWM:")]
    return int(peak.split()[1]) / 1_000


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_read(Path(sys.argv[1])))))
