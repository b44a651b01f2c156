"""Check that the tests catch known faults in the engine.

`python -m verification.faults.run` copies the checkout, plants the faults of `faults.toml` in the copy one at a time,
and expects the tests listed with each fault to fail.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CHECKOUT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("faults.toml")
LIMIT_S = 900.0
# The profile makes property tests draw the same examples each time. Plugins stay as configured in pyproject.toml.
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--hypothesis-profile=ci", "-x", "-q")
# pytest's exit codes; all others mean that no test was judged: a usage error, no tests collected, an interruption.
PASSED, FAILED = 0, 1

Verdict = Literal["caught", "MISSED", "ERROR"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A small change that breaks the engine, and the tests that notice it."""

    id: str
    category: str
    file: str
    before: str
    """Occurs exactly once in the file."""
    after: str
    claim: str
    tests: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    verdict: Verdict
    details: str = ""


def load_faults(only: Sequence[str]) -> list[Fault]:
    """Read the list; `only` selects faults by id, and an empty selection means all."""
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["faults"]
    faults = [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    ids = [fault.id for fault in faults]
    if repeated := sorted({name for name in ids if ids.count(name) > 1}):
        raise SystemExit(f"{LIST.name} has two faults with the id {', '.join(repeated)}. Rename one of them.")
    if unknown := sorted(set(only) - set(ids)):
        raise SystemExit(f"{LIST.name} has no fault named {', '.join(unknown)}.")
    return [fault for fault in faults if not only or fault.id in only]


def copy_checkout(copy: Path) -> None:
    """Copy every tracked file with its present content; symbolic links stay links."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    for name in filter(None, listing.stdout.split("\0")):
        source, target = CHECKOUT / name, copy / name
        if source.is_symlink() or source.exists():  # deleted files are listed until the deletion is staged
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def check_places(faults: Iterable[Fault], copy: Path) -> None:
    """Stop unless every fault can be planted."""
    problems = []
    for fault in faults:
        path = copy / fault.file
        count = path.read_text(encoding="utf-8").count(fault.before) if path.is_file() else 0
        if count != 1 or fault.before == fault.after:
            problems.append(f"{fault.id}: `before` occurs {count} times in {fault.file}; it must occur exactly once.")
    if problems:
        raise SystemExit("\n".join([*problems, f"Update {LIST.name} to the present code."]))


def run_tests(tests: Sequence[str], copy: Path, *, compiled: bool) -> subprocess.CompletedProcess[str]:
    """Run pytest in the copy; `compiled` permits it to write byte code."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    if not compiled:
        # Byte code is matched by size and second, so that of a fault could be used for the restored file.
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [*PYTEST, *tests]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def judge_fault(fault: Fault, tests: Sequence[str], copy: Path) -> Result:
    """Plant a fault, run the tests, and restore the file."""
    path = copy / fault.file
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(fault.before, fault.after), encoding="utf-8")
    try:
        run = run_tests(tests, copy, compiled=False)
    except subprocess.TimeoutExpired:
        return Result(verdict="ERROR", details=f"pytest did not end within {LIMIT_S:.0f} s")
    finally:
        path.write_text(original, encoding="utf-8")
    if run.returncode == FAILED:
        return Result(verdict="caught")
    if run.returncode == PASSED:
        return Result(verdict="MISSED", details=fault.claim)
    return Result(verdict="ERROR", details=f"pytest exited with code {run.returncode}\n{run.stdout}{run.stderr}")


def judge_faults(faults: Sequence[Fault], suite: Sequence[str], copy: Path) -> int:
    """Report each fault; return how many were not caught."""
    missed = 0
    for fault in faults:
        result = judge_fault(fault, suite or fault.tests, copy)
        missed += result.verdict != "caught"
        write_line(f"{result.verdict:<6} {fault.id}" + (f": {result.details}" if result.details else ""))
    return missed


def write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant known faults and expect the tests to catch them.")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="plant only these faults")
    parser.add_argument("--suite", default="", metavar="ARGS", help="pytest arguments to use instead of listed tests")
    options = parser.parse_args()
    faults, suite = load_faults(options.only), shlex.split(options.suite)
    with tempfile.TemporaryDirectory(prefix="waystation-faults-") as folder:
        copy = Path(folder).resolve()
        copy_checkout(copy)
        check_places(faults, copy)
        union = suite or list(dict.fromkeys(test for fault in faults for test in fault.tests))
        run = run_tests(union, copy, compiled=True)
        if run.returncode != PASSED:
            write_line(f"{run.stdout}{run.stderr}")
            raise SystemExit(f"The tests do not pass without faults (exit code {run.returncode}). Fix them first.")
        missed = judge_faults(faults, suite, copy)
    write_line(f"{len(faults) - missed} caught, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
