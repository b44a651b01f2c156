"""What it costs to replay everything that is open before a deployment, and to look into a very long history."""

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
from benchmarks.table import Row, ratio, shown
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer
from waystation.history import SavedHistory, format_saved_history, log_of
from waystation.replay import Recording, gate
from waystation.replay.deployment_gate import OPEN
from waystation.workflows.invocation import AgentInvocation

PROCESSES = 2
PER_MINUTE = 1_000
LONG = 50_000
PROJECTED = 10_000
"""Events a second, at least."""
AT_ONCE = 50


async def measure(plan: Plan) -> list[Row]:
    """Return how the gate compares with Temporal's replayer, and what a long history takes."""
    return [*await _gated(plan), *await _opened(plan)]


async def _gated(plan: Plan) -> list[Row]:
    waiting, turns = (100, 3) if plan.quick else (1_000, 5)
    plan.tell(f"{waiting} open invocations")
    async with EmbeddedServer() as server:
        engine = Engine(await connect(address=server.address))
        worker = await WorkerProcess("benchmarks.engine", server.address).ready()
        try:
            for _ in range(waiting // AT_ONCE):
                await asyncio.gather(*(engine.park() for _ in range(AT_ONCE)))
        finally:
            worker.kill()
        client = AgentClient(await connect(address=server.address))
        bare, gates = [], []
        for turn in range(turns):
            plan.tell(f"replayed, turn {turn + 1} of {turns}")
            # In turns, and with no eye on other programs: the processes of the gate would count as such.
            bare.append(await _bare(client.temporal, waiting))
            gates.append(await _gate(client, waiting))
    pace = 60 * waiting / median(gates)
    return [
        ratio(
            f"gate of {waiting:,} open invocations",
            bare,
            gates,
            unit="s",
            goal=2,
            note=f"{PROCESSES} processes, from their start; floor: Temporal's `Replayer`; both fetch what they replay",
        ),
        Row(
            name="the same, a minute",
            value=pace,
            unit="invocations",
            fact=pace >= PER_MINUTE,
            note=f"at least {PER_MINUTE:,} on two cores",
        ),
    ]


async def _bare(client: Client, waiting: int) -> float:
    started = time.perf_counter()
    replayer = Replayer(workflows=[AgentInvocation], workflow_runner=UnsandboxedWorkflowRunner())
    seen = 0
    async with replayer.workflow_replay_iterator(client.list_workflows(OPEN).map_histories()) as results:
        async for result in results:
            assert result.replay_failure is None
            seen += 1
    assert seen == waiting
    return time.perf_counter() - started


async def _gate(client: AgentClient, waiting: int) -> float:
    started = time.perf_counter()
    report = await gate(client, processes=PROCESSES)
    assert report.passes
    assert report.checked == waiting, f"{report.checked} instead of {waiting}"
    return time.perf_counter() - started


async def _opened(plan: Plan) -> list[Row]:
    events = 5_000 if plan.quick else LONG
    plan.tell(f"a history of {events:,} events")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "long.json")
        size = _write(file, events)
        # In a process of its own, whose memory is nobody else's.
        command = [sys.executable, "-m", "benchmarks.replay", str(file)]
        process = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, check=True)
    found = json.loads(process.stdout)
    return [
        Row(
            name=f"a history of {events:,} events is opened",
            value=found["opened_s"],
            unit="s",
            engine=shown(found["opened_s"], "s"),
            note=f"from a file of {size / 1e6:.1f} MB; {found['peak_mb'] - found['before_mb']:.0f} MB of memory "
            f"more than the {found['before_mb']:.0f} MB of a process that does nothing",
        ),
        Row(
            name="events projected a second",
            value=found["projected"],
            unit="events",
            fact=found["projected"] >= PROJECTED,
            note=f"at least {PROJECTED:,}; the median of five",
        ),
    ]


def _write(file: Path, events: int) -> int:
    return file.write_text(json.dumps(format_saved_history(SavedHistory([long_history(events, size=300)]))))


async def _look(file: Path) -> dict[str, float]:
    before = _memory_mb()
    started = time.perf_counter()
    recording = await Recording.read(file)
    opened_s, peak = time.perf_counter() - started, _memory_mb()
    events = sum(len(history.events) for history in recording.histories)
    paces = []
    for _ in range(5):
        started = time.perf_counter()
        log_of(recording.histories)
        paces.append(events / (time.perf_counter() - started))
    return {"before_mb": before, "peak_mb": peak, "opened_s": opened_s, "projected": median(paces)}


def _memory_mb() -> float:
    """Return the most that this process has used; `getrusage` would tell of the process that started it, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line for line in lines if line.startswith("VmHWM:")]
    return int(peak.split()[1]) / 1_000


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_look(Path(sys.argv[1])))))
