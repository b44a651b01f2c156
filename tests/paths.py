"""Folders and files that tests read."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HISTORIES = ROOT / "tests" / "corpus"
EXAMPLES = ROOT / "examples"


@functools.cache
def syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module. Several tests read all of them."""
    return ast.parse(path.read_text())
