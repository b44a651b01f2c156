"""How much CPU time of a worker traces and metrics take."""

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

from benchmarks.comparison import Plan, SideProcess
from benchmarks.engine import AGENT, ROOT
from benchmarks.side import ONE, cpu_s
from benchmarks.table import Row, ratio
from waystation.core.payload import JsonObject
from waystation.embedded import EmbeddedServer
from waystation.worker.export_thread import INTERVAL_S

IN_A_SAMPLE, IN_A_QUICK_SAMPLE, WARM_UP = 300, 25, 50
IN_FLIGHT = 12
"""Invocations at a time of each worker. Together, they keep two cores busy."""
EXPORT_S = INTERVAL_S + 5.5
"""After this time, all spans have been sent: OpenTelemetry collects them for 5 s."""
GOAL = 1.05
VARIANTS: Mapping[str, Sequence[str]] = {
    "neither": (),
    "metrics": ("--metrics",),
    "traces": ("--traces",),
    "traces and metrics": ("--traces", "--metrics"),
}
"""The options of the compared workers, by what they export. The port of `--metrics` is not included."""
MODELS: Mapping[str, tuple[str, float | None]] = {
    "Gemini over HTTP": ("gemini", GOAL),
    "a model that is a function": (AGENT, None),
}
"""The folders of the compared agents and the goals, by their models. A function takes no CPU time, so it is the worst
case."""


async def measure(plan: Plan) -> list[Row]:
    """Compare workers that export traces, metrics or both with a worker that exports neither.

    The workers of a sample run at the same time, because the speed of a machine may change within seconds. Each sample
    has new processes, because two processes of the same program may differ for as long as they run. Spans go to a
    collector that drops them, and a sample ends when they have been sent. The metrics are scraped once in it.
    """
    async with EmbeddedServer() as server:
        with _serve(lambda _body: b"") as collector, _serve(_reply) as gemini:
            os.environ |= {
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
                "GOOGLE_GEMINI_BASE_URL": gemini,
                "GOOGLE_API_KEY": "not-a-key",
            }
            return [row for model in MODELS for row in await _compare(server.address, model, plan)]


async def _compare(address: str, model: str, plan: Plan) -> list[Row]:
    folder, goal = MODELS[model]
    pairs = [await _measure_new_workers(address, folder, plan) for _ in range(plan.pairs)]
    samples = {name: [sample[name] for sample in pairs] for name in VARIANTS}
    without = samples.pop("neither")
    return [
        ratio(
            f"worker CPU with {name}, to without; {model}",
            without,
            values,
            unit_of_sides="ms",
            goal=goal if name == "traces and metrics" else None,
            note=f"one tool call, {IN_FLIGHT} in flight",
        )
        for name, values in samples.items()
    ]


async def _measure_new_workers(address: str, folder: str, plan: Plan) -> dict[str, float]:
    """Return the CPU time per invocation in milliseconds by variant."""
    with ExitStack() as stack:
        sides, ports = dict[str, SideProcess](), dict[str, int]()
        for name, exported in VARIANTS.items():
            options = [*exported]
            if "--metrics" in exported:
                ports[name] = _find_free_port()
                options.append(str(ports[name]))
            options += ["--agents", str(ROOT / "benchmarks" / "agents" / folder)]
            sides[name] = SideProcess("benchmarks.engine", address, options=options)
            stack.callback(sides[name].end)
        await asyncio.gather(*(side.ready() for side in sides.values()))

        async def run(count: int) -> dict[str, float]:
            before = {name: cpu_s(side.worker_pids) for name, side in sides.items()}
            scraping = asyncio.gather(*(asyncio.to_thread(_scrape, port) for port in ports.values()))
            await asyncio.gather(*(side.run(ONE, count, in_flight=IN_FLIGHT) for side in sides.values()))
            await scraping
            await asyncio.sleep(0 if plan.quick else EXPORT_S)
            return {name: (cpu_s(side.worker_pids) - before[name]) / count * 1e3 for name, side in sides.items()}

        await run(WARM_UP)
        return await run(IN_A_QUICK_SAMPLE if plan.quick else IN_A_SAMPLE)


@contextmanager
def _serve(reply: Callable[[bytes], bytes]) -> Iterator[str]:
    """Serve HTTP in this process until the end of the block, which receives the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = reply(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def _reply(request: bytes) -> bytes:
    """Reply like Gemini: call the tool, then return a text of the same length as the function does."""
    is_first = "text" in json.loads(request)["contents"][-1]["parts"][0]
    part: JsonObject = (
        {"functionCall": {"name": ONE.tool, "args": {"size": ONE.size}}} if is_first else {"text": "f" * ONE.final}
    )
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}
    return json.dumps({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}).encode()


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _scrape(port: int) -> None:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        response.read()
