"""Extensions, which other packages provide as entry points. A package is loaded only when its extension is used.

Each of the six groups below has a protocol, except that models derive from `BaseLlm`. Waystation's own commands,
channels, models and stores conform to the same protocols, but are in tables next to the code that uses them. So they
precede those of other packages, and using them does not read the metadata of all installed packages, which takes 50 ms.
Its adapters and interfaces are entry points, too. They are in its `pyproject.toml`, which stands in for package
metadata in a source tree.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from waystation.core.errors import WaystationError
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject

COMMANDS = "waystation.commands"
"""Each is named after the command. The value is a coroutine function, or a `typer.Typer` with subcommands. The first
parameter of a function is a `CommandContext`, and it returns the exit code."""
CHANNELS = "waystation.channels"
"""Each is named after the key that sets it in the section of a channel. The value is a `ChannelKind`."""
MODELS = "waystation.models"
"""Each is named after the models that it serves: a name, or a pattern such as `acme-*`. The value is a subclass of
`BaseLlm`, whose instances serve one name, given to the constructor as `model`."""
STORES = "waystation.stores"
"""Each is named after the scheme of its URLs. The value is a `StoreScheme`."""
STORE_KINDS = ("files", "memory", "credentials")
ADAPTERS = "waystation.adapters"
"""Each is named after the package whose objects it adapts, such as `google.adk`."""
INTERFACES = "waystation.interfaces"
"""Each is named after the protocol that `waystation web` then speaks, too. The value is a `WebInterface`."""
_MUST_BE: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    COMMANDS: (
        "a coroutine function or a typer.Typer",
        lambda value: inspect.iscoroutinefunction(value) or (callable(value) and not inspect.isroutine(value)),
    ),
    CHANNELS: ("callable", callable),
    MODELS: ("a subclass of BaseLlm", lambda value: isinstance(value, type) and hasattr(value, "supported_models")),
    INTERFACES: ("a WebInterface", lambda value: hasattr(value, "make_rows")),
    STORES: ("a StoreScheme", lambda value: any(hasattr(value, f"open_{kind}") for kind in STORE_KINDS)),
}
"""The requirement for the extensions of each group, and its check."""
_OURS = "waystation"
_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


class ExtensionFailed(WaystationError):
    """An extension that an installed package provides cannot be loaded, or two packages provide the same one.

    Repair, upgrade or uninstall the package that the message names.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Notification:
    """A notification to deliver to one channel."""

    title: str
    text: str
    record: JsonObject
    """The body that webhooks receive, as specified in docs/reference/contract.md."""


class NotDelivered(WaystationError):
    """A notification was not delivered. The error message does not contain an address.

    Check the channel's URL. The delivery is retried unless the service rejected it permanently.
    """

    def __init__(self, problem: str, *, retryable: bool = True) -> None:
        self.retryable = retryable
        super().__init__(problem)


Target: TypeAlias = Callable[[Notification, str], Awaitable[None]]
"""A function that delivers a notification to one of a channel's addresses, or raises NotDelivered. It also takes an ID,
which stays the same if the delivery is repeated."""


class ChannelKind(Protocol):
    """Creates the targets of notifications that a channel's section in the channels file sets."""

    def __call__(self, value: Any, /, *, file: Path, key: str) -> Sequence[Target]:
        """Return the targets for the value of the key. `file` and `key` say where it is; see `read_secret`.

        Raises:
            ValueError: The value is not valid. The message does not contain secrets.
        """


@runtime_checkable
class FileStore(Protocol):
    """Files by path, in the store of payloads or artifacts. Their content is encrypted before, if it is to be."""

    async def list_files(self, folder: str, /) -> list[tuple[str, datetime]]:
        """Return the paths of all files below a folder, with the times they were written; of all if it is empty."""

    async def get(self, path: str, /) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""

    async def put(self, path: str, data: bytes, /, *, new: bool) -> bool:
        """Write a file. If `new` is true and the file exists, write nothing and return False."""

    async def remove(self, path: str, /) -> None:
        """Remove a file if it exists."""


class StoreScheme(Protocol):
    """Opens the stores at URLs of one scheme. A module can be one, and kinds of stores may be missing."""

    def open_files(self, url: str, /) -> FileStore:
        """Return a store of payloads or artifacts."""

    def open_memory(self, url: str, /) -> Any:
        """Return a memory service, which derives from `BaseMemoryService`."""

    def open_credentials(self, url: str, /) -> Any:
        """Return a credential store, which derives from `CredentialStore`."""


class WebInterface(Protocol):
    """Serves another protocol in `waystation web`. A module can be one."""

    def make_rows(self, services: Any, /) -> Sequence[Any]:
        """Return the rows for the route table, which say who may use each route.

        `services` is a `waystation.web.web_services.WebServices`, whose functions check what people may see and answer.
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
        ExtensionFailed: Its module cannot be imported, or lacks the object, or the object does not fit the group.
    """
    must_be, fits = _MUST_BE.get(entry.group, ("", lambda _: True))
    try:
        value = entry.load()
        if not fits(value):
            raise TypeError(f"it is {with_article(value)}, but must be {must_be}")
    except Exception as error:  # another package's code can raise anything
        # Not `entry.extras`: Python takes an extra with a hyphen for two.
        if isinstance(error, ModuleNotFoundError) and (extras := re.search(r"\[(.+)\]", entry.value)):
            raise ExtensionFailed(
                f"{entry.name!r} needs the package {error.name!r}. Install it with: "
                f"pip install '{_package_of(entry)}[{extras[1]}]'"
            ) from error
        raise ExtensionFailed(
            f"{_describe(entry)}, but loading {entry.value!r} failed: {type(error).__name__}: {error}. "
            "Repair, upgrade or uninstall it."
        ) from error
    return value


def find_problems(own: Mapping[str, Callable[[str], bool]]) -> list[str]:
    """Return why extensions of other packages cannot be used. All of them are loaded.

    `own` contains for each group a function that says whether Waystation has an extension with a name.
    """
    problems = list[str]()
    for group, is_own in own.items():
        try:
            entries = [entry for entry in find_extensions(group).values() if _package_of(entry) != _OURS]
        except ExtensionFailed as error:
            problems.append(str(error))
            continue
        for entry in entries:
            try:
                load_extension(entry)
            except ExtensionFailed as error:
                problems.append(str(error))
            if is_own(entry.name):
                problems.append(
                    f"{_describe(entry)}, but Waystation's own of this name takes precedence. Rename or uninstall it."
                )
    return problems


def load_interfaces(names: Iterable[str]) -> dict[str, WebInterface]:
    """Return the interfaces with these names.

    Raises:
        ExtensionFailed: There is no such interface, or it cannot be loaded, for example because its extra is missing.
    """
    extensions = find_extensions(INTERFACES)
    if unknown := sorted(set(names) - set(extensions)):
        known = ", ".join(sorted(extensions))
        raise ExtensionFailed(f"No interface is named {unknown[0]!r}. The interfaces are: {known}.")
    return {name: load_extension(extensions[name]) for name in names}


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
    import tomllib  # imported here because every agent imports this module

    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"] if _PROJECT.is_file() else {}
    own = project.get("entry-points", {}).get(group, {}) if project.get("name") == _OURS else {}
    return [metadata.EntryPoint(name, value, group) for name, value in own.items()]


def _describe(entry: metadata.EntryPoint) -> str:
    return f"The package {_package_of(entry)!r} provides {entry.name!r} in the group {entry.group!r} of entry points"


def _package_of(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else _OURS
