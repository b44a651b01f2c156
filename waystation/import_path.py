"""The places where Python looks for the modules of a user's project."""

import sys
from pathlib import Path

_OWN = str(Path(__file__).resolve().parents[1])
"""The folder that contains this package: a folder of installed packages, or a checkout."""


def add_project(folder: Path) -> None:
    """Let the modules in a folder be imported, before installed ones of the same names, but after the standard library.

    They also precede the folders `tools`, `activities` and `workflows` of a checkout of Waystation, which are on the
    import path if it is installed from the checkout, or if its `worker.py` is run.
    """
    place = sys.path.index(_OWN) if _OWN in sys.path else len(sys.path)
    if str(folder) not in sys.path[: place + 1]:
        sys.path.insert(place, str(folder))
