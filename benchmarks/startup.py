"""The time from starting a worker process until the server sees it poll."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from benchmarks.plan import Plan
from benchmarks.process import ROOT
from benchmarks.quiet import Machine
from benchmarks.table import Row, format_value
from waystation.client import connect
from waystation.embedded import EmbeddedServer

AGENT = '''
from waystation import Agent


def roll(sides: int) -> int:
    """Roll a die."""
    return sides


root_agent = Agent(name="dice", model="gemini-2.5-flash", instruction="Roll dice.", tools=[roll])
'''


async def measure(plan: Plan) -> list[Row]:
    """Measure how long `worker.py` takes until it polls, and the import that every Temporal worker needs."""
    plan.report_progress("import to polling")
    starts = 4 if plan.quick else 10
    with tempfile.TemporaryDirectory() as folder:
        agents = _write_agent(Path(folder, "agents"))
        # A worker refuses to start without a key; no model is called here.
        environment = {**with_bytecode(str(Path(folder, "bytecode"))), "GOOGLE_API_KEY": "unused"}
        async with EmbeddedServer() as server:
            client = await connect(address=server.address)
            machine = Machine([server.pid], patience_s=plan.patience_s)

            async def polling() -> float:
                return await _until_polling(client, server.address, agents, environment)

            async def importing() -> float:
                started = time.perf_counter()
                process = _spawn(["-c", "import temporalio.worker"], environment)
                await asyncio.to_thread(process.wait)
                return time.perf_counter() - started

            await polling()  # compiles
            imports, starting = [], []
            for _ in range(starts):
                imports.append(await machine.undisturbed(importing))
                starting.append(await machine.undisturbed(polling))
            plan.note_disturbances(machine)
    return [
        Row(
            name="import to polling",
            value=median(starting),
            unit="s",
            goal=0.7,
            floor=format_value(median(imports), "s"),
            engine=format_value(median(starting), "s"),
            note="`worker.py` from exec to the server's list of pollers; floor: `import temporalio.worker` alone",
            samples={"floor": imports, "engine": starting},
        )
    ]


async def _until_polling(client: Client, address: str, agents: Path, environment: Mapping[str, str]) -> float:
    queue = f"startup-{uuid.uuid4().hex[:8]}"
    started = time.perf_counter()
    process = _spawn(["worker.py", "--agents", str(agents), "--address", address, "--task-queue", queue], environment)
    try:
        for kind in (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
            request = DescribeTaskQueueRequest(
                namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
            )
            while not (await client.workflow_service.describe_task_queue(request)).pollers:
                if process.poll() is not None:
                    raise RuntimeError(f"worker.py ended with exit code {process.returncode} instead of polling.")
                await asyncio.sleep(0.005)
        return time.perf_counter() - started
    finally:
        process.kill()
        process.wait()


def _write_agent(agents: Path) -> Path:
    package = agents / "dice"
    package.mkdir(parents=True)
    (package / "agent.py").write_text(AGENT)
    return agents


def with_bytecode(folder: str) -> Mapping[str, str]:
    """Return an environment in which modules are compiled once, as in an installation, outside the repository."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**variables, "PYTHONPYCACHEPREFIX": folder}


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
