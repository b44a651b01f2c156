"""The benchmarks run as programs, as `make bench` runs them."""

import json
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of the benchmarks to its end."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_one_row_runs_alone_and_writes_its_samples(tmp_path: Path) -> None:
    """A row starts the sides that it needs, without a peer whose packages are missing; capacity names missing rows."""
    file = tmp_path / "costs.json"
    peer = f"pydantic_ai_dbos={sys.executable}"
    done = run("benchmarks", "histories", "--pairs", "1", "--peer", peer, "--json", str(file))
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows["events of one tool call"]["floor"] == 23
    assert done.returncode == int(any(row["verdict"] == "not met" for row in rows.values()))
    assert "| events of one tool call | 23 |" in done.stdout
    assert "No module named 'dbos'" in done.stderr
    estimated = run("benchmarks.capacity", str(file), "--per-second", "1")
    assert (estimated.returncode, "'worker CPU per invocation'" in estimated.stdout) == (1, True)
