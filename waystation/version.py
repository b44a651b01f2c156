"""The versions of Waystation, the Temporal SDK, google-adk and Python."""

import platform
import re

ADK_VERSIONS = ">=2.13,<2.14"
"""The supported versions of google-adk, as in the extra `adk`."""
_NOT_INSTALLED = "not installed"


def waystation_version() -> str:
    """Return the version of Waystation, from package metadata."""
    return _version("waystation")


def versions() -> str:
    """Return the versions as one line. They come from package metadata, so no package is imported."""
    ours, sdk = waystation_version(), _version("temporalio")
    return f"waystation {ours} (temporalio {sdk}, Python {platform.python_version()})"


def find_adk_problem(installed: str | None = None) -> str | None:
    """Return why agents of google-adk cannot run in this environment, with the remedy, or None.

    `installed` is a version of google-adk. By default, package metadata provides it, so google-adk is not imported.
    """
    version = installed or _version("google-adk")
    if re.match(r"2\.13(\D|$)", version):
        return None
    problem = "is not installed" if version == _NOT_INSTALLED else f"{version} is not supported ({ADK_VERSIONS} is)"
    return f"google-adk {problem}. Install it with: pip install 'waystation[adk]'"


def is_adk_installed() -> bool:
    """Return whether any version of google-adk is installed."""
    return _version("google-adk") != _NOT_INSTALLED


def _version(distribution: str) -> str:
    from importlib import metadata  # slow to import, and workers do not need it

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # run from source files
        return _NOT_INSTALLED
