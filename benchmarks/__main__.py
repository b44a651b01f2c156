"""Run the benchmarks: python -m benchmarks [NAME …] [--quick] [--json]."""

import argparse
import asyncio
import json
import logging
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version

import structlog

from benchmarks import approvals, conversations, growth, ratios, recovery, replay, startup, stream
from benchmarks.plan import Plan
from benchmarks.table import Row, markdown

BENCHMARKS: dict[str, Callable[[Plan], Awaitable[list[Row]]]] = {
    "ratios": ratios.measure,
    "startup": startup.measure,
    "history": growth.measure,
    "recovery": recovery.measure,
    "stream": stream.measure,
    "conversations": conversations.measure,
    "approvals": approvals.measure,
    "replay": replay.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all, and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the cost of the engine.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="take fewer samples: a rough result in a minute or two")
    parser.add_argument("--json", action="store_true", help="print JSON, with all samples, instead of a table")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - BENCHMARKS.keys():
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    plan = Plan(quick=options.quick)
    rows: list[Row] = []
    for name, measure in BENCHMARKS.items():
        if not options.names or name in options.names:
            rows.extend(asyncio.run(_run(measure, plan)))
    if options.json:
        print(json.dumps({"machine": machine(), "remarks": plan.remarks, "rows": [row.to_json() for row in rows]}))
    else:
        print(markdown(rows), machine(), *plan.remarks, sep="\n\n")
    return 0


async def _run(measure: Callable[[Plan], Awaitable[list[Row]]], plan: Plan) -> list[Row]:
    return await measure(plan)


def machine() -> str:
    """Describe the machine and the versions."""
    return (
        f"Python {platform.python_version()}, temporalio {version('temporalio')}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}. Ratios hold elsewhere, milliseconds do not."
    )


if __name__ == "__main__":
    sys.exit(main())
