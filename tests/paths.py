"""Folders and files that tests read."""

import ast
import functools
import gc
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HISTORIES = ROOT / "tests" / "corpus"
EXAMPLES = ROOT / "examples"


def write_secret(file: Path, content: str) -> None:
    """Write a secret to a file that only the current user can read, as all readers of secrets require."""
    file.touch(mode=0o600)
    file.write_text(content)


@functools.cache
def syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module. Several tests read all of them."""
    gc.disable()  # otherwise, scanning the new nodes takes twice as long as parsing
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()
