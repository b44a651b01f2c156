"""Serve the health and the metrics of a process over HTTP.

The server has threads of its own, so it also answers while the event loop is blocked.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import closing, suppress
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self, TypeAlias, TypeVar

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.runtime import PrometheusConfig
from temporalio.service import RPCError

from waystation.client import AgentClient
from waystation.core.errors import InvalidConfiguration
from waystation.logs import configure_core
from waystation.worker.metric_export import BUCKETS
from waystation.worker.metrics import Measurement, Metric
from waystation.worker.namespace_metrics import NamespaceMetrics

T = TypeVar("T")
Stage: TypeAlias = Literal["starting", "serving", "draining"]
Check: TypeAlias = Callable[[], str | None]
"""Returns a problem, or None. Called in a thread of the status server."""

LOOPBACK = "127.0.0.1"
BLOCKED_AFTER_S = 5.0
TICKS = 10
"""How often the event loop reports that it runs, in the time after which it counts as blocked."""
CHECK_LIMIT_S = 3.0
"""How long a check may take. Afterwards it counts as failed until it ends."""
EXPORTER_LIMIT_S = 3.0
"""How long the SDK's exporter may take to answer."""
COUNT_LIMIT_S = 9.0
"""How long a scrape waits for the metrics of the namespace. Prometheus's default limit is 10 s."""
RECHECK_S = 2.0
"""How long the result of a check is used again, so that frequent probes do not load the server and the stores."""
REQUEST_LIMIT_S = 10.0
"""How long a client may take to send its request."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CHECK = Metric("waystation_check_ok", "1 if a check of this process passes, otherwise 0", ("check",))
OVERDUE = f"no answer within {CHECK_LIMIT_S:g} s"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def parse_address(text: str) -> tuple[str, int]:
    """Parse `[HOST:]PORT`. The default host is the loopback address.

    Raises:
        ValueError: The text has another form.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{text!r} is not of the form [HOST:]PORT")
    return host.strip("[]") or LOOPBACK, int(port)


class _ServerRun:
    """One run of a check in a thread of its own, so that a check that hangs delays nothing else."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._problem: str | None = None
        self._began_at, self._ended_at = time.monotonic(), float("inf")
        self._ended = threading.Event()

    def __call__(self) -> None:
        try:
            self._problem = self._check()
        except Exception as error:  # noqa: BLE001 - whatever it is, the check did not pass
            self._problem = f"the check failed: {error}"
        self._ended_at = time.monotonic()
        self._ended.set()

    def wait(self) -> str | None:
        """Return the problem that was found, or that the check takes longer than `CHECK_LIMIT_S`."""
        left_s = self._began_at + CHECK_LIMIT_S - time.monotonic()
        return self._problem if self._ended.wait(max(0.0, left_s)) else OVERDUE

    def is_outdated(self) -> bool:
        """Return whether the check ended `RECHECK_S` ago. One that hangs is not started again."""
        return time.monotonic() >= self._ended_at + RECHECK_S


class StatusServer:
    """Serves `/healthz`, `/readyz`, `/metrics` and `/metrics/namespace`."""

    def __init__(self, address: tuple[str, int], *, blocked_after_s: float = BLOCKED_AFTER_S) -> None:
        """Listen at an address, and let Temporal's core export its metrics through this server.

        Create it before the first client. The event loop is checked once `watch` has been called.

        Args:
            address: Host and port. The port 0 stands for any free port.
            blocked_after_s: How long the event loop may be blocked until the process is not healthy.

        Raises:
            InvalidConfiguration: The port is taken, or this machine does not have the address.
        """
        # The SDK's exporter cannot serve anything else at its address, so it gets one of its own, which is not public.
        with closing(socket.create_server((LOOPBACK, 0))) as free:
            self._sdk_port: int = free.getsockname()[1]
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        server_class = type("Server", (ThreadingHTTPServer,), {"address_family": family, "daemon_threads": True})
        handler = type("Handler", (_Handler,), {"status": self})
        try:
            self._server: ThreadingHTTPServer = server_class(address, handler)
        except OSError as error:
            problem = f"cannot listen there: {error.strerror or error}. Choose another address."
            raise InvalidConfiguration(f"--metrics {address[0]}:{address[1]}", "", problem) from None
        host, port = self._server.server_address[:2]
        self.url = f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}"
        self._blocked_after_s = blocked_after_s
        # The default runtime of a process without metrics is replaced. A client that exists keeps it.
        configure_core(self._exporter)
        self.stage: Stage = "starting"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticked_at = 0.0
        self._checks: dict[str, Check] = {}
        self._runs: dict[str, _ServerRun] = {}
        self._lock = threading.Lock()  # of the runs
        self._namespace: NamespaceMetrics | None = None

    @property
    def _exporter(self) -> PrometheusConfig:
        return PrometheusConfig(
            bind_address=f"{LOOPBACK}:{self._sdk_port}",
            counters_total_suffix=True,
            unit_suffix=True,
            durations_as_seconds=True,
            histogram_bucket_overrides=BUCKETS,
        )

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="status", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop = None
        self._server.shutdown()
        self._server.server_close()

    def watch(self, checks: Mapping[str, Check]) -> None:
        """Check the running event loop from now on, and also with `checks`."""
        self._loop = asyncio.get_running_loop()
        self._checks = dict(checks)
        self._tick()

    def serve(self, client: Client, task_queue: str) -> None:
        """Report that the process serves. Check the client's connection, and count what waits in its namespace."""
        self._checks["server"] = lambda: self._check_server(client)
        self._namespace = NamespaceMetrics(AgentClient(client, task_queue=task_queue))
        self.stage = "serving"

    def _tick(self) -> None:
        self._ticked_at = time.monotonic()
        if self._loop:
            self._loop.call_later(self._blocked_after_s / TICKS, self._tick)

    def _check_loop(self) -> str | None:
        blocked_s = time.monotonic() - self._ticked_at
        return f"blocked for {blocked_s:.0f} s" if blocked_s > self._blocked_after_s else None

    def _check_server(self, client: Client) -> str | None:
        if self._check_loop():
            return "not known, because the event loop is blocked"
        request = DescribeNamespaceRequest(namespace=client.namespace)
        limit = timedelta(seconds=CHECK_LIMIT_S)
        try:
            self._run(client.workflow_service.describe_namespace(request, timeout=limit), CHECK_LIMIT_S)
        except (RPCError, TimeoutError) as error:
            return (error.message if isinstance(error, RPCError) else "") or OVERDUE
        return None

    def _run(self, coroutine: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Run a coroutine in the event loop and wait for it.

        Raises:
            TimeoutError: It did not end in time.
        """
        assert self._loop
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(limit_s)
        except TimeoutError:
            future.cancel()
            raise

    def find_problems(self) -> dict[str, str | None]:
        """Return the problem that each check found, or None for a check that passed.

        This takes at most `CHECK_LIMIT_S`. It returns at once if only a check is running that has taken longer.
        """
        loop = {"event_loop": self._check_loop()} if self._loop else {}
        runs = {name: self._start(name, check) for name, check in list(self._checks.items())}
        return {**loop, **{name: run.wait() for name, run in runs.items()}}

    def _start(self, name: str, check: Check) -> "_ServerRun":
        """Return the run of a check that is not over or was recent, or else start one."""
        with self._lock:
            run = self._runs.get(name)
            if run is None or run.is_outdated():
                run = self._runs[name] = _ServerRun(check)
                threading.Thread(target=run, name=f"check {name}", daemon=True).start()
            return run

    def describe_health(self) -> tuple[bool, dict[str, str]]:
        """Return whether the process can work at all, and why not. If not, it should be started again."""
        problem = self._check_loop() if self._loop else None
        return problem is None, {"event_loop": problem or "ok"}

    def describe_readiness(self) -> tuple[bool, dict[str, str]]:
        """Return whether the process accepts work and can do it, and why not."""
        problems = self.find_problems()
        is_ready = self.stage == "serving" and not any(problems.values())
        return is_ready, {"stage": self.stage, **{name: problem or "ok" for name, problem in problems.items()}}

    def export(self) -> str:
        """Return the metrics of this process.

        Raises:
            OSError: The SDK's exporter does not answer.
            HTTPException: Likewise.
        """
        problems = {"stage": None if self.stage == "serving" else self.stage, **self.find_problems()}
        checks = [Measurement(CHECK, int(problem is None), {"check": name}) for name, problem in problems.items()]
        connection = HTTPConnection(LOOPBACK, self._sdk_port, timeout=EXPORTER_LIMIT_S)
        with closing(connection):
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode() + format_gauges(checks)

    def export_namespace(self) -> str:
        """Return the metrics of the namespace.

        Raises:
            RPCError: The server does not answer, or the namespace lacks the search attributes.
            TimeoutError: Counting takes too long, or this process is not connected yet.
        """
        if self._namespace is None:
            raise TimeoutError("not connected yet")
        return format_gauges(self._run(self._namespace.measure(), COUNT_LIMIT_S))


def format_gauges(measurements: Iterable[Measurement]) -> str:
    """Format gauges in Prometheus's text format."""
    lines: dict[Metric, list[str]] = {}
    for metric, value, labels in measurements:
        pairs = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
        lines.setdefault(metric, []).append(f"{metric.name}{f'{{{pairs}}}' if pairs else ''} {value:.12g}\n")
    return "".join(
        f"# HELP {metric.name} {metric.description}\n# TYPE {metric.name} gauge\n{''.join(samples)}"
        for metric, samples in lines.items()
    )


class _Handler(BaseHTTPRequestHandler):
    status: StatusServer
    timeout = REQUEST_LIMIT_S
    server_version, sys_version = "waystation", ""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/healthz":
                self._describe(*self.status.describe_health())
            case "/readyz":
                self._describe(*self.status.describe_readiness())
            case "/metrics":
                self._export(self.status.export)
            case "/metrics/namespace":
                self._export(self.status.export_namespace)
            case _:
                self._reply(404, "Not found. Use /healthz, /readyz, /metrics or /metrics/namespace.\n")

    do_HEAD = do_GET

    def _describe(self, is_ok: bool, checks: dict[str, str]) -> None:
        self._reply(200 if is_ok else 503, json.dumps({"ok": is_ok, **checks}) + "\n", "application/json")

    def _export(self, export: Callable[[], str]) -> None:
        try:
            self._reply(200, export(), CONTENT_TYPE)
        except (OSError, HTTPException, RPCError) as error:
            self._reply(503, f"{type(error).__name__}: {error}\n")

    def _reply(self, code: int, text: str, content_type: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        with suppress(OSError):  # the client is gone
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes are frequent."""
