"""Run the benchmarks: python -m benchmarks [NAME …] [--pairs N] [--quick] [--json FILE] [--peer NAME=PYTHON …]."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import structlog

from benchmarks import (
    actions,
    adapted_agents,
    approvals,
    closing,
    growth,
    prompts,
    quotas,
    ratios,
    replay,
    scopes,
    startup,
    stream,
    telemetry,
    tenants,
)
from benchmarks.comparison import PEERS, Comparison, Plan, sides
from benchmarks.engine import ROOT
from benchmarks.table import Row, markdown

COMPARISONS: Mapping[str, Callable[[Comparison, Plan], Awaitable[list[Row]]]] = {
    "one": ratios.one,
    "five": ratios.five,
    "quick": ratios.quick,
    "approval": ratios.approval,
    "rate": ratios.rate,
    "workers": ratios.workers,
    "histories": ratios.histories,
    "actions": actions.measure,
    "replay": ratios.replay,
}
"""Benchmarks that share a server and the processes of all sides."""
BENCHMARKS: Mapping[str, Callable[[Plan], Awaitable[list[Row]]]] = {
    "startup": startup.startup,
    "prompts": prompts.prompts,
    "steps": growth.steps,
    "session": growth.session,
    "database": growth.database,
    "waiting": approvals.waiting,
    "kill": approvals.kill,
    "closing": closing.measure,
    "stream": stream.measure,
    "scopes": scopes.measure,
    "tenants": tenants.measure,
    "quotas": quotas.measure,
    "telemetry": telemetry.measure,
    "gate": replay.measure_gate,
    "reading": replay.measure_reading,
    "adapted": adapted_agents.measure,
}
NAMES = (*COMPARISONS, *BENCHMARKS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all, and print the results. Return 1 if a goal is not met."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the cost of the engine. The exit code is 1 if a goal is not met.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--pairs", type=int, default=15, help="samples of each side, taken in turns; default: 15")
    parser.add_argument("--quick", action="store_true", help="do less than the rows of the full table: a rough result")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples to FILE")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help=f"also measure an engine that is installed in the environment of an interpreter: {', '.join(PEERS)}; "
        "google_adk is also found in `.venv-adk`",
    )
    options = parser.parse_args(arguments)
    peers = find_peers(ROOT) | dict(option.partition("=")[::2] for option in options.peer)
    if unknown := {*options.names} - {*NAMES} | {*peers} - {*PEERS}:
        parser.error(f"unknown name {', '.join(sorted(unknown))}; choose from {', '.join((*NAMES, *PEERS))}")
    rows: list[Row] = []
    try:
        asyncio.run(_measure(options.names or NAMES, Plan(options.pairs, options.quick, peers), rows))
    finally:  # an error or Ctrl-C does not lose what was measured before it
        if options.json:
            options.json.write_text(json.dumps({"machine": machine(), "rows": [row.to_json() for row in rows]}))
        print(markdown(rows), machine(), sep="\n\n")
    return int(any(row.verdict == "not met" for row in rows))


async def _measure(names: Sequence[str], plan: Plan, rows: list[Row]) -> None:
    """Add the rows of benchmarks, which run in a temporary folder: the engine's processes share the default stores."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if not COMPARISONS.keys().isdisjoint(names):
            async with sides(plan) as both:
                for name, compare in COMPARISONS.items():
                    if name in names:
                        rows += await _report(name, compare(both, plan))
        for name, measure in BENCHMARKS.items():
            if name in names:
                rows += await _report(name, measure(plan))


async def _report(name: str, measured: Awaitable[list[Row]]) -> list[Row]:
    started = time.perf_counter()
    rows = await measured
    print(f"… {name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return rows


def find_peers(root: Path) -> dict[str, str]:
    """Return the interpreters of peers whose environment exists in the folder of the project."""
    python = root / ".venv-adk" / "bin" / "python"
    return {"google_adk": str(python)} if python.exists() else {}


def machine() -> str:
    """Describe the machine, its load and the versions."""
    return (
        f"Python {platform.python_version()}, temporalio {version('temporalio')}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}, load {os.getloadavg()[0]:.1f} at the end. "
        "Ratios hold elsewhere, milliseconds do not."
    )


if __name__ == "__main__":
    sys.exit(main())
