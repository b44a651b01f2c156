"""The versions of Waystation, Temporal's SDK and Python, for `--version`."""

import platform
from importlib import metadata


def versions() -> str:
    """Return the versions in one line, read from package metadata without importing the packages."""
    ours, sdk = _version("waystation"), _version("temporalio")
    return f"waystation {ours} (temporalio {sdk}, Python {platform.python_version()})"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # run from source files
        return "not installed"
