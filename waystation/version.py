"""Which versions are at work, as the programs' `--version` says."""

import platform
from importlib import metadata


def versions() -> str:
    """Return our version, Temporal's SDK's and Python's, in one line; nothing is imported to learn them."""
    ours, sdk = _version("waystation"), _version("temporalio")
    return f"waystation {ours} (temporalio {sdk}, Python {platform.python_version()})"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # a copy of the sources on the path
        return "not installed"
