"""How much CPU time of a worker traces and metrics take."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

from benchmarks.comparison import Plan, Sample, SideProcess, in_turns
from benchmarks.side import ONE
from benchmarks.table import Row, ratio
from waystation.embedded import EmbeddedServer

IN_A_SAMPLE, IN_A_QUICK_SAMPLE, IN_FLIGHT = 100, 25, 50
GOAL = 1.05


async def measure(plan: Plan) -> list[Row]:
    """Compare workers that export traces, metrics or both with a worker that exports neither.

    Spans go to a collector that drops them. The metrics are scraped once in each sample.
    """
    count = IN_A_QUICK_SAMPLE if plan.quick else IN_A_SAMPLE
    port, both_port = _find_free_port(), _find_free_port()
    metrics, both_metrics = ("--metrics", str(port)), ("--metrics", str(both_port))
    variants: dict[str, tuple[Sequence[str], int | None]] = {
        "neither": ((), None),
        "metrics": (metrics, port),
        "traces": (("--traces",), None),
        "traces and metrics": (("--traces", *both_metrics), both_port),
    }
    async with EmbeddedServer() as server:
        with collector(), ExitStack() as stack:
            sides: dict[SideProcess, int | None] = {}
            for options, scraped in variants.values():
                side = SideProcess("benchmarks.engine", server.address, options=options)
                stack.callback(side.end)
                sides[await side.ready()] = scraped

            async def run(side: SideProcess) -> Sample:
                scraping = asyncio.create_task(asyncio.to_thread(_scrape, sides[side]))
                sample = await side.run(ONE, count, in_flight=IN_FLIGHT)
                await scraping
                return sample

            samples = await in_turns([*sides], plan.pairs, run)
    without, *others = ([sample.worker_cpu_ms for sample in samples[side]] for side in sides)
    return [
        ratio(
            f"worker CPU with {name}, to without",
            without,
            values,
            unit_of_sides="ms",
            goal=GOAL if name == "traces and metrics" else None,
            note=f"one tool call, {IN_FLIGHT} in flight",
        )
        for name, values in zip([*variants][1:], others, strict=True)
    ]


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
