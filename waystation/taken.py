"""Secrets that a process is given in variables of its environment: read, and then removed from it.

Programs that it starts inherit variables, and whoever looks at it from within lists them.
"""

import os

PREFIX = "env:"
"""How a configuration says that a secret is in a variable: `env:NAME`."""

_taken: dict[str, str] = {}
"""A second reader in this process is not told that it was never set."""


def take(name: str) -> str | None:
    """Return what a variable holds, or held when it was taken; None when it was never set."""
    found = os.environ.pop(name, None)
    if found is not None:
        _taken[name] = found
    return _taken.get(name)
