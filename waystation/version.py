"""The text of `--version`: the versions of Waystation, the Temporal SDK and Python."""

import platform
from importlib import metadata


def versions() -> str:
    """Return the versions as one line. They come from package metadata, so no package is imported."""
    ours, sdk = _version("waystation"), _version("temporalio")
    return f"waystation {ours} (temporalio {sdk}, Python {platform.python_version()})"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # run from source files
        return "not installed"
