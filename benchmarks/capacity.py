"""Estimate the workers and the load of the server that a load needs, from measured costs.

python -m benchmarks rate histories actions waiting --json costs.json
python -m benchmarks.capacity costs.json --per-second 20 --waiting 50000
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.actions import SLOW_ACTIONS, STREAMED_ACTIONS
from benchmarks.approvals import CACHED, WAITING_MEMORY
from benchmarks.ratios import ACTIVITIES, BYTES, EVENTS, WORKER_CPU, WORKER_MEMORY, WORKFLOW_TASKS
from benchmarks.side import STREAMED
from benchmarks.table import format_value

ACTIONS_LIMIT = 500
"""Actions per second that a namespace of Temporal Cloud allows by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The cost of an invocation with one tool call, and of one waiting call."""

    worker_cpu_ms: float
    worker_mb: float
    """Memory of a busy worker on which no call waits."""
    waiting_kb: float
    """Additional memory of a worker for each waiting call that it has cached."""
    events: float
    bytes: float
    workflow_tasks: float
    activities: float
    actions: float
    """Billable actions of Temporal Cloud, with model calls of 5 s."""
    actions_per_streamed_second: float

    @classmethod
    def read(cls, rows: Sequence[dict[str, Any]]) -> "Costs":
        """Take the costs from the rows of the benchmarks.

        Raises:
            KeyError: A row is missing.
        """
        engine = {row["name"]: row["engine"] or row["value"] for row in rows}
        return cls(
            worker_cpu_ms=engine[WORKER_CPU],
            worker_mb=engine[WORKER_MEMORY],
            waiting_kb=engine[WAITING_MEMORY],
            events=engine[EVENTS],
            bytes=engine[BYTES],
            workflow_tasks=engine[WORKFLOW_TASKS],
            activities=engine[ACTIVITIES],
            actions=engine[SLOW_ACTIONS],
            # Starting the invocation and its model call are the other two.
            actions_per_streamed_second=(engine[STREAMED_ACTIONS] - 2) / (STREAMED.model_ms / 1e3),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load to plan for, and what a worker may use."""

    per_second: float
    """Invocations that start per second, at the peak."""
    calls: float = 1
    """Tool calls of an invocation, one after another."""
    streamed_s: float = 0
    """Seconds for which the model streams text in an invocation."""
    waiting: int = 0
    """Calls that wait for an approval at the same time."""
    utilization: float = 0.6
    """Share of one core that a worker may use; a Python process cannot use much more than one core."""
    retention_days: float = 3
    """How long the server keeps the history of a completed invocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The workers and the server resources that a load needs."""

    workers: int
    """One more than the CPU time needs, so that one can be killed or deployed."""
    worker_mb: float
    """Memory of each worker."""
    events_per_second: float
    workflow_tasks_per_second: float
    activities_per_second: float
    actions_per_second: float
    million_actions_per_day: float
    history_gb_per_day: float
    history_gb_kept: float


def estimate(costs: Costs, load: Load) -> Capacity:
    """Estimate what a load needs; see `assumptions`."""
    units = load.per_second * load.calls
    workers = math.ceil(units * costs.worker_cpu_ms / 1e3 / load.utilization) + 1
    cached = min(CACHED, math.ceil(load.waiting / workers))
    actions = units * costs.actions + load.per_second * load.streamed_s * costs.actions_per_streamed_second
    gb_per_day = units * costs.bytes * 86_400 / 1e9
    return Capacity(
        workers=workers,
        worker_mb=costs.worker_mb + cached * costs.waiting_kb / 1e3,
        events_per_second=units * costs.events,
        workflow_tasks_per_second=units * costs.workflow_tasks,
        activities_per_second=units * costs.activities,
        actions_per_second=actions,
        million_actions_per_day=actions * 86_400 / 1e6,
        history_gb_per_day=gb_per_day,
        history_gb_kept=gb_per_day * load.retention_days + load.waiting * costs.bytes / 1e9,
    )


def assumptions(costs: Costs, load: Load) -> list[str]:
    """Describe what the estimate assumes."""
    return [
        f"An invocation with {load.calls:g} tool calls, one after another, costs at most {load.calls:g} times as much "
        "as one with one tool call, which has two model calls. Texts and results have 100 to 200 bytes; add your own.",
        f"One tool call: {costs.worker_cpu_ms:.1f} ms of worker CPU time, {costs.events:g} events, "
        f"{costs.bytes:,.0f} B of history, {costs.workflow_tasks:g} workflow tasks, {costs.activities:g} activities.",
        f"Actions are those of Temporal Cloud, which allows {ACTIONS_LIMIT} per second in a namespace by default: "
        f"{costs.actions:g} for one tool call with model calls of 5 s, and {costs.actions_per_streamed_second:.1f} "
        "more for each second of streamed text. Approvals, called agents and fairness are not included.",
        "Tools and models use no CPU time of the worker. Measure a tool that computes, and add its time.",
        f"A worker uses at most {load.utilization:.0%} of one core, and one worker more than needed is running.",
        f"A worker uses {costs.worker_mb:.0f} MB, and {costs.waiting_kb:.1f} kB for each waiting call that it has "
        f"cached, at most {CACHED:,}. Other waiting calls need no worker; an answer replays their history.",
        f"The server keeps a completed invocation for {load.retention_days:g} days, uncompressed, on one replica.",
        "The load is a peak that lasts all day.",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the estimate and its assumptions. Return 1 if the file lacks a cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description="Estimate workers and load.")
    parser.add_argument("costs", type=Path, metavar="FILE", help="written by `python -m benchmarks … --json FILE`")
    parser.add_argument("--per-second", type=float, required=True, help="invocations that start per second")
    parser.add_argument("--calls", type=float, default=1, help="tool calls of an invocation; default: 1")
    parser.add_argument(
        "--streamed-s", type=float, default=0, help="seconds of streamed text of an invocation; default: 0"
    )
    parser.add_argument("--waiting", type=int, default=0, help="calls that wait at the same time; default: 0")
    parser.add_argument("--utilization", type=float, default=0.6, help="share of a core per worker; default: 0.6")
    parser.add_argument("--retention-days", type=float, default=3, help="retention of the namespace; default: 3")
    options = vars(parser.parse_args(arguments))
    try:
        costs = Costs.read(json.loads(options.pop("costs").read_text())["rows"])
    except KeyError as error:
        print(f"The file has no row {error}. Run: python -m benchmarks rate histories actions waiting --json FILE")
        return 1
    load = Load(**options)
    capacity = estimate(costs, load)
    for name in Capacity.__dataclass_fields__:
        print(f"{name.replace('_', ' '):<28}{format_value(getattr(capacity, name), ''):>10}")
    print("\nAssumptions:", *(f"- {line}" for line in assumptions(costs, load)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
