"""How much CPU time of a worker traces and metrics take."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

from benchmarks.comparison import Plan, Sample, SideProcess, in_turns
from benchmarks.side import ONE
from benchmarks.table import Row, ratio
from waystation.embedded import EmbeddedServer

IN_A_SAMPLE, IN_A_QUICK_SAMPLE, IN_FLIGHT = 100, 25, 50
GOAL = 1.05
VARIANTS: Mapping[str, Sequence[str]] = {
    "neither": (),
    "metrics": ("--metrics",),
    "traces": ("--traces",),
    "traces and metrics": ("--traces", "--metrics"),
}
"""The options of the compared workers, by what they export. The port of `--metrics` is not included."""


async def measure(plan: Plan) -> list[Row]:
    """Compare workers that export traces, metrics or both with a worker that exports neither.

    Each pair has new processes, because two processes of the same program differ by some percent for as long as they
    run. Spans go to a collector that drops them. The metrics are scraped once in each sample.
    """
    count = IN_A_QUICK_SAMPLE if plan.quick else IN_A_SAMPLE
    async with EmbeddedServer() as server:
        with collector():

            async def run(name: str) -> float:
                return (await _measure_new_worker(server.address, VARIANTS[name], count)).worker_cpu_ms

            samples = await in_turns([*VARIANTS], plan.pairs, run, warm_up=0)
    without = samples.pop("neither")
    return [
        ratio(
            f"worker CPU with {name}, to without",
            without,
            values,
            unit_of_sides="ms",
            goal=GOAL if name == "traces and metrics" else None,
            note=f"one tool call, {IN_FLIGHT} in flight",
        )
        for name, values in samples.items()
    ]


async def _measure_new_worker(address: str, exported: Sequence[str], count: int) -> Sample:
    port = _find_free_port() if "--metrics" in exported else None
    side = SideProcess("benchmarks.engine", address, options=[*exported, *([str(port)] if port else [])])

    async def run(count: int) -> Sample:
        scraping = asyncio.create_task(asyncio.to_thread(_scrape, port))
        sample = await side.run(ONE, count, in_flight=IN_FLIGHT)
        await scraping
        return sample

    try:
        await side.ready()
        await run(count // 2)  # warm-up
        return await run(count)
    finally:
        side.end()


@contextmanager
def collector() -> Iterator[None]:
    """Accept spans until the end of the block, in this process, and drop them. New processes send theirs here."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield
        finally:
            server.shutdown()


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _scrape(port: int | None) -> None:
    if port:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            response.read()
