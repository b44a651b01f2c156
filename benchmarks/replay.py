"""The deployment check over many open invocations, and reading a very long history."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from benchmarks.engine import Engine
from benchmarks.long_history import long_history
from benchmarks.plan import Plan
from benchmarks.process import ROOT, WorkerProcess
from benchmarks.table import Row, format_value, ratio
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.history import SavedHistory, build_log, format_saved_history
from waystation.replay import Recording, gate
from waystation.replay.deployment_gate import OPEN
from waystation.workflows.invocation import AgentInvocation

PROCESSES = 2
PER_MINUTE = 1_000
LONG = 50_000
PROJECTED = 10_000
"""Minimum of events per second."""
AT_ONCE = 50


async def measure(plan: Plan) -> list[Row]:
    """Compare the deployment check with Temporal's replayer, and read a long history."""
    return [*await _measure_gate(plan), *await _measure_reading(plan)]


async def _measure_gate(plan: Plan) -> list[Row]:
    waiting, turns = (100, 3) if plan.quick else (1_000, 5)
    plan.report_progress(f"{waiting} open invocations")
    async with EmbeddedServer() as server:
        engine = Engine(await connect(address=server.address))
        worker = await WorkerProcess("benchmarks.engine", server.address).ready()
        try:
            for _ in range(waiting // AT_ONCE):
                await asyncio.gather(*(engine.start_waiting() for _ in range(AT_ONCE)))
        finally:
            worker.kill()
        client = AgentClient(await connect(address=server.address))
        bare, checked = [], []
        for turn in range(turns):
            plan.report_progress(f"replayed, turn {turn + 1} of {turns}")
            # Other programs are not considered, because the processes of the check would count as such.
            bare.append(await _replay_plainly(client.temporal, waiting))
            checked.append(await _gate(client, waiting))
    pace = 60 * waiting / median(checked)
    return [
        ratio(
            f"deployment check of {waiting:,} open invocations",
            bare,
            checked,
            unit="s",
            goal=2,
            note=f"{PROCESSES} processes, from their start; floor: Temporal's `Replayer`; both fetch what they replay",
        ),
        Row(
            name="the same, per minute",
            value=pace,
            unit="invocations",
            fact=pace >= PER_MINUTE,
            note=f"at least {PER_MINUTE:,} on two cores",
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


async def _measure_reading(plan: Plan) -> list[Row]:
    events = 5_000 if plan.quick else LONG
    plan.report_progress(f"a history of {events:,} events")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "long.json")
        size = _write(file, events)
        # A separate process, so that its memory can be measured.
        command = [sys.executable, "-m", "benchmarks.replay", str(file)]
        process = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, check=True)
    measured = json.loads(process.stdout)
    return [
        Row(
            name=f"a history of {events:,} events is read",
            value=measured["opened_s"],
            unit="s",
            engine=format_value(measured["opened_s"], "s"),
            note=f"from a file of {size / 1e6:.1f} MB; {measured['peak_mb'] - measured['before_mb']:.0f} MB of memory "
            f"more than the {measured['before_mb']:.0f} MB of an idle process",
        ),
        Row(
            name="events projected per second",
            value=measured["projected"],
            unit="events",
            fact=measured["projected"] >= PROJECTED,
            note=f"at least {PROJECTED:,}; the median of five",
        ),
    ]


def _write(file: Path, events: int) -> int:
    return file.write_text(json.dumps(format_saved_history(SavedHistory([long_history(events, size=300)]))))


async def _read(file: Path) -> dict[str, float]:
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
    return {"before_mb": before, "peak_mb": peak, "opened_s": opened_s, "projected": median(paces)}


def _memory_mb() -> float:
    """Return the peak memory of this process; `getrusage` would include the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line for line in lines if line.startswith("VmHWM:")]
    return int(peak.split()[1]) / 1_000


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_read(Path(sys.argv[1])))))
