"""Record the effects of the tools on disk, so that they outlive a killed worker.

A tool that has to last as long as a test wants waits for a gate: a file that the test creates.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from waystation.core.payload import JsonObject

VARIABLE = "WAYSTATION_TEST_LEDGER"
PATIENCE_S = 60.0


class Ledger:
    """A folder with the ledger and its gates; tests and worker processes share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, what: str, **facts: Any) -> None:
        """Append a line in one write, so that lines of several processes do not mix."""
        line = json.dumps({"what": what, "pid": os.getpid(), **facts}) + "\n"
        with (self.folder / "ledger.jsonl").open("a") as file:
            file.write(line)

    def lines(self, what: str, **facts: Any) -> list[JsonObject]:
        """Return the lines with this kind and these facts, oldest first."""
        path = self.folder / "ledger.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in found if {"what": what, **facts}.items() <= line.items()]

    def open(self, gate: str) -> None:
        """Let every caller at `gate` pass."""
        (self.folder / gate).touch()

    def is_open(self, gate: str) -> bool:
        """Return whether `gate` was opened."""
        return (self.folder / gate).exists()

    def wait(self, gate: str) -> None:
        """Wait, in the calling thread, until `gate` is opened."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_open(gate):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The gate {gate!r} was not opened.")
            time.sleep(0.005)


def ledger() -> Ledger:
    """Return the ledger that the environment of this process names."""
    return Ledger(Path(os.environ[VARIABLE]))
