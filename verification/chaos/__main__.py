# ruff: noqa: T201  (a program that talks to a person)
"""Run chaos: `python -m verification.chaos`; `-h` lists the options."""

import argparse
import asyncio
import itertools
import logging
import sys
import tempfile
from pathlib import Path

import structlog
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from verification.chaos.chaos_plan import Size, draw_plan
from verification.chaos.chaos_run import run_chaos
from verification.chaos.report import Figures, format_table
from verification.chaos.setups import SETUPS


def main() -> int:
    """Run one plan per seed and print the figures. Return 1 if a figure that must be 0 is not 0."""
    parser = argparse.ArgumentParser(prog="python -m verification.chaos", description=main.__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5], metavar="N")
    parser.add_argument("--kills", type=int, default=Size.kills, help="kills of workers for each seed")
    parser.add_argument("--answers", type=int, default=Size.answers, help="answers for each seed")
    parser.add_argument("--outage", type=float, default=Size.outage_s, help="minimum seconds of each outage")
    parser.add_argument("--setups", nargs="+", choices=SETUPS, default=SETUPS[:1], help="one a seed; the last repeats")
    options = parser.parse_args()
    only_errors = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=only_errors)))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    size = Size(kills=options.kills, answers=options.answers, outage_s=options.outage)
    figures: dict[int, Figures] = {}
    setups = itertools.chain(options.setups, itertools.repeat(options.setups[-1]))
    for seed, setup in zip(options.seeds, setups, strict=False):
        with tempfile.TemporaryDirectory(prefix="waystation-chaos-") as folder:
            figures[seed] = asyncio.run(run_chaos(draw_plan(seed, size), Path(folder), setup))
        print(
            f"seed {seed}, {setup}: {figures[seed].problems or 'no problems'}",
            *figures[seed].details,
            sep="\n",
            flush=True,
        )
    print(format_table(figures))
    return 1 if any(each.problems for each in figures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
