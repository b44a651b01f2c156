"""ADK's names that come from google-adk, and the areas of ADK that Waystation lacks. `adk_names.toml` lists both.

A name that Waystation does not have is looked up here when it is imported, so most programs never read the list.
"""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

FROM_ADK = "extra"
"""The rule of a name that google-adk provides."""
_ROOT = "waystation."
_UNMODIFIED = "Agents that are written for google-adk run unmodified"


@functools.cache
def read_rules() -> dict[str, Any]:
    """Return the tables of `adk_names.toml`, and `lacking`: by path, what Waystation lacks and what to do instead."""
    # Imported here because every import of Waystation imports this module.
    import tomllib
    from pathlib import Path

    rules: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    rules["lacking"] = {
        path: f"Waystation lacks ADK's {name}. {area['instead']}"
        for name, area in rules["areas"].items()
        for path in area["paths"]
    }
    return rules


def known_differences() -> dict[str, str]:
    """Return how some names that exist here differ from ADK's, by name."""
    differences: dict[str, str] = read_rules()["differs"]
    return differences


def find_rule(name: str) -> str | None:
    """Return FROM_ADK, or the area that Waystation lacks and what to do instead, or None if there is no rule.

    `name` is a module, or a name in a module, without `waystation.`. The rule of the longest prefix applies. There is
    no rule for names that Waystation defines.
    """
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        prefix = ".".join(parts[:end])
        if prefix in read_rules()["lacking"]:
            return str(read_rules()["lacking"][prefix])
        if prefix in read_rules()["extra"]["names"]:
            return FROM_ADK
        if prefix in read_rules()["here"]["names"]:
            return None
    return None


def check_rule(name: str) -> bool:
    """Return whether google-adk provides a name.

    Raises:
        ImportError: The name is in an area that Waystation lacks, or google-adk is not installed.
    """
    rule = find_rule(name)
    if rule is None:
        return False
    from waystation.version import find_adk_problem

    if rule != FROM_ADK:
        raise ImportError(f"`{_ROOT}{name}` does not exist. {rule} {_UNMODIFIED} with: pip install 'waystation[adk]'")
    if problem := find_adk_problem():
        raise ImportError(f"`{_ROOT}{name}` is a name of google-adk. {problem}. {_UNMODIFIED}, too.")
    return True


def import_name(package: str, name: str) -> object:
    """Return a name that google-adk provides for one of our packages.

    Raises:
        AttributeError: There is no such name.
        ImportError: The name is in an area that Waystation lacks, or google-adk is not installed.
    """
    module = f"{package}.".removeprefix(_ROOT)
    if name.startswith("_") or not check_rule(module + name):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return _read(f"google.adk.{module}".rstrip("."), name)


def _read(module: str, name: str) -> object:
    """Return a name in a module of google-adk.

    Raises:
        ImportError: google-adk does not install a package that the name needs.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"`{module}.{name}` needs the module `{error.name}`, which google-adk does not install by default. Install "
            "the package that provides it, or one of google-adk's extras."
        ) from error


class AdkFinder:
    """Finds modules below `waystation` that exist only in google-adk. Each has the names of ADK's module."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module, or None if `adk_names.toml` does not contain it. See `importlib.abc`.

        Raises:
            ImportError: The module is in an area that Waystation lacks, or google-adk is not installed.
        """
        if not fullname.startswith(_ROOT) or not check_rule(fullname.removeprefix(_ROOT)):
            return None
        return ModuleSpec(fullname, _AdkLoader(), is_package=True)  # type: ignore[arg-type]  # loads no abstract base class


class _AdkLoader:
    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system create an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Let the module look up each name in ADK's."""
        source = importlib.import_module(f"google.adk.{module.__name__.removeprefix(_ROOT)}")
        names = {"__all__": getattr(source, "__all__", [name for name in dir(source) if not name.startswith("_")])}
        vars(module).update(names, __doc__=source.__doc__, __getattr__=functools.partial(_read, source.__name__))


def install_finder() -> None:
    """Let `import` find the modules. It asks other finders first."""
    if AdkFinder not in sys.meta_path:
        sys.meta_path.append(AdkFinder)
