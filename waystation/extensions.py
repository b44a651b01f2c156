"""Extensions, which other packages provide as entry points. A package is loaded only when its extension is used.

Waystation's own entry points are in its `pyproject.toml`, which stands in for package metadata in a source tree.
"""

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from waystation.core import WaystationError

ADAPTERS = "waystation.adapters"
"""Each is named after the package whose objects it adapts, such as `google.adk`."""
_OURS = "waystation"
_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


class ExtensionFailed(WaystationError):
    """An extension that an installed package provides cannot be loaded, or two packages provide the same one.

    Repair, upgrade or uninstall the package that the message names.
    """


class FrameworkAdapter(Protocol):
    """Turns objects of another framework into Waystation's. A module can be an adapter."""

    def adapt_agent(self, agent: Any, /) -> Any:
        """Return a Waystation agent for an agent, or an App for an app.

        Raises:
            AuthoringError: It cannot run.
        """

    def adapt_tools(self, agent: Any, tools: list[Any], /) -> list[Any]:
        """Return the tools of one of Waystation's agents, with those of the framework adapted."""

    def adapt_plugins(self, plugins: list[Any], /) -> list[Any]:
        """Return plugins, with those of the framework adapted."""

    def adapt_code_executor(self, agent: Any, /) -> None:
        """Let one of Waystation's agents run code with its code executor, which is one of the framework."""

    def list_settings_without_effect(self, app: Any, /) -> list[str]:
        """Return the names of those settings of an app or agent that Waystation ignores."""


def find_extensions(group: str) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of a group by name. None of them is loaded.

    Raises:
        ExtensionFailed: Two packages provide an entry point with the same name.
    """
    extensions: dict[str, metadata.EntryPoint] = {}
    for entry in (*metadata.entry_points(group=group), *_read_project(group)):
        other = extensions.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise ExtensionFailed(
                f"The packages {_package_of(other)!r} and {_package_of(entry)!r} both provide {entry.name!r} in the "
                f"group {group!r} of entry points. Uninstall one of them."
            )
    return extensions


def load_extension(entry: metadata.EntryPoint) -> Any:
    """Return the object that an entry point names.

    Raises:
        ExtensionFailed: Its module cannot be imported, or lacks the object.
    """
    try:
        return entry.load()
    except Exception as error:  # another package's code can raise anything
        raise ExtensionFailed(
            f"The package {_package_of(entry)!r} provides {entry.name!r} in the group {entry.group!r} of entry points, "
            f"but loading {entry.value!r} failed: {type(error).__name__}: {error}. Repair, upgrade or uninstall it."
        ) from error


def find_adapters(values: Iterable[object]) -> list[FrameworkAdapter]:
    """Return the adapters for those values that are objects of other frameworks, each once.

    Entry points are read only if there is a value of a class that is neither Python's nor ours.

    Raises:
        ExtensionFailed: An adapter cannot be loaded.
    """
    origins = [{f"{cls.__module__}." for cls in type(value).__mro__[:-1]} for value in values]
    foreign = {
        module
        for modules in origins
        if not any(module.startswith(f"{_OURS}.") for module in modules)
        for module in modules - {"builtins."}
    }
    extensions = find_extensions(ADAPTERS) if foreign else {}
    return [
        load_extension(entry)
        for name, entry in extensions.items()
        if any(module.startswith(f"{name}.") for module in foreign)
    ]


def find_adapter(value: object) -> FrameworkAdapter | None:
    """Return the adapter for an object of another framework, or None for other objects."""
    return next(iter(find_adapters([value])), None)


def adapt_plugins(plugins: list[Any]) -> list[Any]:
    """Return plugins, with those of other frameworks adapted.

    Raises:
        AuthoringError: A plugin cannot run.
    """
    for adapter in find_adapters(plugins):
        plugins = adapter.adapt_plugins(plugins)
    return plugins


def _read_project(group: str) -> list[metadata.EntryPoint]:
    """Return Waystation's own entry points if this is a source tree, whose metadata may be missing or outdated."""
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"] if _PROJECT.is_file() else {}
    own = project.get("entry-points", {}).get(group, {}) if project.get("name") == _OURS else {}
    return [metadata.EntryPoint(name, value, group) for name, value in own.items()]


def _package_of(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else _OURS
