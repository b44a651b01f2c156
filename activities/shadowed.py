"""Top-level packages of ours that another distribution has replaced."""

import sys
from collections.abc import Iterator
from pathlib import Path

from waystation.agents.registry import Problem
from waystation.core.errors import InvalidAgent


def shadowed() -> Iterator[Problem]:
    """Yield a problem for each."""
    here = Path(__file__).resolve().parent.parent
    for name in ("tools", "workflows", "activities"):
        found = Path(sys.modules[name].__file__ or "").resolve().parent.parent
        if found != here:
            text = f"the package {name!r} is imported from {found}, not from Waystation; uninstall what put it there."
            yield Problem(str(found / name), InvalidAgent(name, text))
