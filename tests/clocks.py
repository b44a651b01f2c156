"""Run tests while a clock or a calendar turns over: `python -m tests.clocks [pytest arguments]`.

Tests without a server get another clock from libfaketime. It cannot give one to a Temporal server, which is a static
program, so tests in `tests/server` keep the clock and get a time zone in which the situation is about to occur.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.paths import ROOT

LEAD = timedelta(seconds=60)
"""The time between the start of the tests and a situation."""
HOUR = timedelta(hours=1)
# A month's end would need another date, so tests with a server have none.
CLOCKS = {
    "midnight": ("Asia/Kolkata", datetime(2026, 11, 18)),  # noqa: DTZ001 (the zone is beside it)
    "month's end": ("UTC", datetime(2026, 12, 1)),  # noqa: DTZ001
    "spring": ("Europe/Berlin", datetime(2027, 3, 28, 2)),  # noqa: DTZ001
    "autumn": ("Europe/Berlin", datetime(2026, 10, 25, 3)),  # noqa: DTZ001
}
"""The zone and the local time of each situation; in spring and autumn, when daylight saving begins and ends."""


LIBFAKETIME_FAILS = "tests/corpus/test_divergence.py::test_a_replay_that_times_out_is_repeated"
"""A test that interrupts threads. Under libfaketime, about every other run of it fails at any time of day."""


def pytest_configure() -> None:
    """Replace `time.sleep`, which fails with libfaketime 0.9.10 from Python 3.11 on (wolfcw/libfaketime#426)."""
    if "FAKETIME" in os.environ:
        pytest.MonkeyPatch().setattr(time, "sleep", lambda seconds: threading.Event().wait(seconds))


def find_libfaketime() -> Path | None:
    """Return the library of Debian's, Fedora's or a built libfaketime."""
    folders = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"))
    libraries = (path for folder in folders for path in folder.glob("**/faketime/libfaketimeMT.so.1"))
    return next(libraries, None)


def shift_clock(library: Path, zone: str, local: datetime, now: datetime) -> dict[str, str]:
    """Return the environment in which this local time is about to come."""
    shift = local.replace(tzinfo=ZoneInfo(zone)) - LEAD - now
    # Keep the times of files, or else Python would treat all compiled modules as outdated.
    unshifted = {"NO_FAKE_STAT": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return {"TZ": zone, "LD_PRELOAD": str(library), "FAKETIME": f"{shift.total_seconds():+.0f}", **unshifted}


def choose_zones(now: datetime) -> dict[str, dict[str, str]]:
    """Return for each situation the environment with a zone in which it occurs soon."""
    then = (now + LEAD + timedelta(seconds=59)).replace(second=0, microsecond=0)
    # POSIX's notation: local time plus the offset is UTC, and days count from 0.
    minutes = 60 * then.hour + then.minute
    sign, minutes = ("+", minutes) if minutes <= 720 else ("-", 1440 - minutes)
    summer = then + HOUR
    other = (then.timetuple().tm_yday + 180) % 365
    return {
        "midnight": {"TZ": f"TST{sign}{minutes // 60}:{minutes % 60:02}"},
        "spring": {"TZ": f"WIN0SUM,{then.timetuple().tm_yday - 1}/{then:%H:%M},{other}/0"},
        "autumn": {"TZ": f"WIN0SUM,{other}/0,{summer.timetuple().tm_yday - 1}/{summer:%H:%M}"},
    }


def run(situation: str, environment: Mapping[str, str], arguments: list[str]) -> bool:
    """Run pytest, print how it ended, and return whether all passed."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.clocks", "-q", "-n", "2", "--dist", "worksteal", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ran.stdout.splitlines() or ran.stderr.splitlines() or [f"exit code {ran.returncode}"]
    print(f"{situation} (TZ={environment['TZ']}): {lines[-1]}", flush=True)  # noqa: T201
    if ran.returncode:
        print(*(line for line in lines if line.startswith(("FAILED", "ERROR"))), sep="\n", flush=True)  # noqa: T201
    return ran.returncode == 0


def main(arguments: list[str]) -> int:
    """Run the given tests, those of `tests/unit` and `tests/corpus` by default, in each situation."""
    paths = [each for each in arguments if each.startswith("tests/")] or ["tests/unit", "tests/corpus"]
    options = [each for each in arguments if not each.startswith("tests/")]
    library = find_libfaketime()
    if library is None:
        print("libfaketime is not installed (Debian: faketime); there is no month's end.", flush=True)  # noqa: T201
    shiftable = [path for path in paths if library and path.startswith(("tests/unit", "tests/corpus"))]
    others = [path for path in paths if path not in shiftable]
    passed = []
    for situation, (zone, local) in CLOCKS.items():
        if library and shiftable:
            shifted = shift_clock(library, zone, local, datetime.now(UTC))
            passed.append(run(situation, shifted, [*shiftable, f"--deselect={LIBFAKETIME_FAILS}", *options]))
        zones = choose_zones(datetime.now(UTC))
        if others and situation in zones:
            passed.append(run(situation, zones[situation], [*others, *options]))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
