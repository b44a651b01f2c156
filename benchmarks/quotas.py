"""Whether four workers together keep rate limits, `Retry-After` and a budget, as a provider sees them over HTTP."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.comparison import Plan
from benchmarks.engine import ROOT
from benchmarks.side import wait_for_pollers
from benchmarks.table import Row
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.embedded import EmbeddedServer, bind_to_this_process
from waystation.testing.scripted_server import ScriptedServer

WORKERS = 4
DURATION_S, QUICK_S = 150.0, 75.0
"""How long the provider counts: more than two windows, or a little more than one."""
WINDOW_S = 60.0
REQUESTS, TOKENS, COST = 60, 60_000, 1.0
RETRY_AFTER_S = 20
QUOTAS = f"""
store = "quotas.db"
prices = {{ "*" = {{ prompt = 0, output = 10 }} }}
limits = [
    {{ model = "paced", requests_per_minute = {REQUESTS} }},
    {{ model = "wordy", tokens_per_minute = {TOKENS} }},
    {{ model = "busy" }},
]
budgets = [{{ tenant = "small", period = "month", max_cost = {COST} }}]
"""
AGENT = """
import os
from waystation import Agent
from waystation.models.openai_llm import OpenAICompatible
root_agent = Agent(name="{0}", model=OpenAICompatible("{0}", base_url=os.environ["PROVIDER_URL"]))
"""
OUTPUT_TOKENS = {"paced": 10, "wordy": 1_500, "busy": 10, "paid": 2_000}
"""The tokens of each model's replies. Workers reserve a thousand, so a reply of `wordy` or `paid` exceeds that."""
SECONDS = {"paced": 0.2, "wordy": 1.0, "busy": 0.2, "paid": 3.0}
FLOODS = {"paced": (200, 0.02), "wordy": (120, 0.05), "busy": (100, 0.5), "paid": (120, 0.25)}
"""The number of invocations of each agent, and the interval between them in seconds."""


@dataclass
class Provider(ScriptedServer):
    """Answers chat completions, and records when they arrived."""

    arrivals: dict[str, list[float]] = field(default_factory=lambda: {model: [] for model in OUTPUT_TOKENS})
    in_flight: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTPUT_TOKENS, 0))
    most_in_flight: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTPUT_TOKENS, 0))
    refused_at: float | None = None
    """When `busy` was refused, once."""

    def __post_init__(self) -> None:
        super().__init__()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        model = json.loads(await reader.readexactly(length))["model"]
        now = time.monotonic()
        self.arrivals[model].append(now)
        status, headers, body = "200 OK", "", self._reply(model)
        if model == "busy" and self.refused_at is None and len(self.arrivals[model]) > 10:
            self.refused_at = now
            status, headers, body = "429 Too Many Requests", f"retry-after: {RETRY_AFTER_S}\r\n", '{"error": {}}'
        else:
            self.in_flight[model] += 1
            self.most_in_flight[model] = max(self.most_in_flight[model], self.in_flight[model])
            try:
                await asyncio.sleep(SECONDS[model])
            finally:
                self.in_flight[model] -= 1
        answer = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n{body}"
        )
        writer.write(answer.encode())
        await writer.drain()
        return True

    def _reply(self, model: str) -> str:
        message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}
        usage = {"prompt_tokens": 0, "completion_tokens": OUTPUT_TOKENS[model], "total_tokens": OUTPUT_TOKENS[model]}
        about = {"id": "c", "object": "chat.completion", "created": 1, "model": model}
        return json.dumps({**about, "choices": [message], "usage": usage})

    def most_in_a_window(self, model: str) -> int:
        """Return the largest number of requests in any window."""
        times = self.arrivals[model]
        return max(sum(first <= at < first + WINDOW_S for at in times) for first in times)


async def measure(plan: Plan) -> list[Row]:
    """Flood four workers, kill one of them while its calls are in flight, and compare the requests with the quotas."""
    write_files()
    async with EmbeddedServer() as server, Provider() as provider:
        client = AgentClient(await connect(address=server.address), task_queue="quotas")
        async with running_workers(client, provider.url) as workers:
            floods = [asyncio.create_task(start(client, model, *flood)) for model, flood in FLOODS.items()]
            while provider.in_flight["paid"] < WORKERS:  # noqa: ASYNC110  # as simple as an event
                await asyncio.sleep(0.05)
            workers[0].kill()
            await asyncio.sleep(QUICK_S if plan.quick else DURATION_S)
            await asyncio.gather(*floods)
    return summarize(provider)


def write_files() -> None:
    """Write the agents and the quotas to the current folder."""
    for model in OUTPUT_TOKENS:
        folder = Path("agents", model)
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "agent.py").write_text(AGENT.format(model))
    Path("quotas.toml").write_text(QUOTAS)


def summarize(provider: Provider) -> list[Row]:
    """Compare the requests with the quotas."""
    wordy, paid = provider.most_in_flight["wordy"], provider.most_in_flight["paid"]
    tokens = provider.most_in_a_window("wordy") * OUTPUT_TOKENS["wordy"]
    call_cost = OUTPUT_TOKENS["paid"] * 10 / 1e6
    cost = len(provider.arrivals["paid"]) * call_cost
    paced, refused_at = provider.most_in_a_window("paced"), provider.refused_at or 0.0
    early = [at - refused_at for at in provider.arrivals["busy"] if 2 <= at - refused_at < RETRY_AFTER_S]
    return [
        Row(
            name="requests in any 60 s, relative to the limit",
            samples=[paced / REQUESTS],
            exact=True,
            goal=1.1,
            note=f"{paced} of {REQUESTS}, {len(provider.arrivals['paced'])} in total",
        ),
        Row(
            name="tokens in any 60 s, relative to the limit plus calls in flight",
            samples=[tokens / (TOKENS + wordy * OUTPUT_TOKENS["wordy"])],
            exact=True,
            goal=1.0,
            note=f"{tokens:,} of {TOKENS:,}, {wordy} in flight, {len(provider.arrivals['wordy'])} requests in total",
        ),
        Row(
            name="cost, relative to the budget plus calls in flight",
            samples=[cost / (COST + paid * call_cost)],
            exact=True,
            goal=1.0,
            note=f"${cost:.2f} of ${COST:g}, {paid} in flight, one worker was killed",
        ),
        Row(
            name="requests during Retry-After",
            samples=[len(early)],
            exact=True,
            goal=0.0,
            note=f"{RETRY_AFTER_S} s without the first 2; {len(provider.arrivals['busy'])} requests in total",
        ),
    ]


async def start(client: AgentClient, agent: str, count: int, interval_s: float) -> None:
    """Start invocations at an interval."""
    for _ in range(count):
        await client.start(agent, "go", tenant="small" if agent == "paid" else "large")
        await asyncio.sleep(interval_s)


@asynccontextmanager
async def running_workers(client: AgentClient, url: str) -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """Run the worker processes until the end of the block."""
    processes = [start_worker(client, url) for _ in range(WORKERS)]
    try:
        await wait_for_pollers(client.temporal, client.task_queue, processes)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start_worker(client: AgentClient, url: str) -> subprocess.Popen[bytes]:
    """Start a worker process, which also ends when this process is killed."""
    options = {
        "--agents": "agents",
        "--address": client.temporal.service_client.config.target_host,
        "--task-queue": client.task_queue,
        "--quotas": "quotas.toml",
    }
    command = [sys.executable, str(ROOT / "worker.py"), *(word for option in options.items() for word in option)]
    environment = {**os.environ, "PROVIDER_URL": url}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(bind_to_this_process(command), env=environment, stdin=quiet, stdout=quiet, stderr=quiet)
