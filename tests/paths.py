"""Folders that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HISTORIES = ROOT / "tests" / "corpus"
EXAMPLES = ROOT / "examples"
