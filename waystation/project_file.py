"""The project file `waystation.toml`. Options override environment variables, which override the file.

`ProjectTables` is the only list of the settings that programs share: the key of each in the file, its environment
variable and its option. The tables of single programs, such as `[worker]`, have a key for each of their other options.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import structlog
from pydantic import ValidationError

from waystation.configuration import (
    PLACEHOLDER,
    PREFIX,
    ConfigurationTable,
    describe_first_error,
    describe_source,
    read_configuration,
    read_secret,
    read_toml,
)
from waystation.core.approval import CLIENT_IDENTITY_ENV, IDENTITY_ENV
from waystation.core.errors import InvalidConfiguration

if TYPE_CHECKING:
    from waystation.core.budget import Quotas

log = structlog.get_logger("waystation.configuration")

PROJECT_FILE = "waystation.toml"
PROJECT_ENV = "WAYSTATION_PROJECT"
NO_PROJECT = "none"
"""The value of WAYSTATION_PROJECT and `--project-file` with which no project file is read."""
HERE = "."
ROOT = 0
"""The ID of the user who may change any file anyway."""
QUOTAS_ENV = "WAYSTATION_QUOTAS"
CHANNELS_ENV = "WAYSTATION_CHANNELS"
TRIGGERS_ENV = "WAYSTATION_TRIGGERS"
WEB_IDENTITY_ENV = "WAYSTATION_WEB_IDENTITY"
_SECRET = re.compile(r"(secret|passw(or)?d|token|key)(_file)?$|^urls$", re.IGNORECASE)
"""Matches the names of keys whose values are secrets, or refer to them. Addresses of channels contain tokens."""
_SECRET_VALUE = re.compile(
    r"://[^/@\s]*:[^/@\s]+@|(^|[?&\s])\w*(passw(or)?d|token|secret|sig|api_?key|access_key)=|-----BEGIN", re.IGNORECASE
)
"""Matches URLs and connection strings with a password, and PEM."""


class Setting(NamedTuple):
    """The other places of a setting that the project file has, and the kind of its value."""

    meaning: str
    variable: str = ""
    option: str = ""
    kind: Literal["text", "path", "place", "keys", "table", "secret"] = "text"
    """`place` is a path or a URL, `keys` a path or `env:NAME`, `table` the path of a file or the file's content."""


Text = str | None
Table = str | dict[str, Any] | None


class ServerTable(ConfigurationTable):
    """The Temporal server. Its credentials are sent only to the address that is set beside them."""

    address: Annotated[Text, Setting("address of the Temporal server", "TEMPORAL_ADDRESS", "--address")] = None
    namespace: Annotated[Text, Setting("Temporal namespace", "TEMPORAL_NAMESPACE", "--namespace")] = None
    profile: Annotated[Text, Setting("profile of Temporal's client configuration", "TEMPORAL_PROFILE", "--profile")] = (
        None
    )
    task_queue: Annotated[Text, Setting("task queue that the workers poll", option="--task-queue")] = None
    api_key: Annotated[Text, Setting("API key: `env:NAME` or a file", "TEMPORAL_API_KEY", kind="secret")] = None
    tls: Annotated[bool | None, Setting("whether to use TLS", "TEMPORAL_TLS")] = None
    tls_server_name: Annotated[Text, Setting("name in the certificate", "TEMPORAL_TLS_SERVER_NAME")] = None
    tls_server_ca_cert: Annotated[
        Text, Setting("file with the CA certificate", "TEMPORAL_TLS_SERVER_CA_CERT_PATH", kind="path")
    ] = None
    tls_client_cert: Annotated[
        Text, Setting("file with the client certificate", "TEMPORAL_TLS_CLIENT_CERT_PATH", kind="path")
    ] = None
    tls_client_key: Annotated[
        Text, Setting("file with the key of the client certificate", "TEMPORAL_TLS_CLIENT_KEY_PATH", kind="path")
    ] = None


class StoresTable(ConfigurationTable):
    """The stores of the workers."""

    payloads: Annotated[
        Text, Setting("folder or object store for large payloads", "WAYSTATION_STORE", "--store", "place")
    ] = None
    offload_over: Annotated[
        int | None, Setting("bytes from which payloads go to the store", option="--offload-over")
    ] = None
    artifacts: Annotated[Text, Setting("folder or object store for artifacts", option="--artifacts", kind="place")] = (
        None
    )
    memory: Annotated[Text, Setting("store for memories", option="--memory", kind="place")] = None
    credentials: Annotated[Text, Setting("store for credentials", option="--credentials", kind="place")] = None


class EncryptionTable(ConfigurationTable):
    """The keys that encrypt histories and stores."""

    keys: Annotated[Text, Setting("key file, or `env:NAME`", "WAYSTATION_ENCRYPTION_KEYS", kind="keys")] = None
    user_keys: Annotated[Text, Setting("store of user keys", "WAYSTATION_USER_KEYS", kind="place")] = None


class IdentityTable(ConfigurationTable):
    """Keys for verified answers."""

    workers: Annotated[Table, Setting("identity file of workers", IDENTITY_ENV, "--identity", "table")] = None
    web: Annotated[Table, Setting("identity file of `waystation web`", WEB_IDENTITY_ENV, "--identity", "table")] = None
    clients: Annotated[Table, Setting("identity file of clients", CLIENT_IDENTITY_ENV, kind="table")] = None
    worker_keys: Annotated[
        Text, Setting("keys that all workers share, or `env:NAME`", "WAYSTATION_KEYS", "--keys", "keys")
    ] = None


class ProjectTables(ConfigurationTable):
    """The content of a project file. The options of single programs are verified by these programs."""

    agents: Annotated[
        list[str] | None, Setting("folders that contain agent packages", option="--agents", kind="path")
    ] = None
    server: ServerTable = ServerTable()
    stores: StoresTable = StoresTable()
    encryption: EncryptionTable = EncryptionTable()
    identity: IdentityTable = IdentityTable()
    notifications: Annotated[Table, Setting("channels that notify approvers", CHANNELS_ENV, "--channels", "table")] = (
        None
    )
    quotas: Annotated[Table, Setting("rate limits and budgets", QUOTAS_ENV, "--quotas", "table")] = None
    triggers: Annotated[Table, Setting("webhooks that start agents", TRIGGERS_ENV, "--triggers", "table")] = None
    worker: dict[str, Any] = {}
    telemetry: dict[str, Any] = {}
    web: dict[str, Any] = {}
    codec_server: dict[str, Any] = {}
    dev: dict[str, Any] = {}


def _list_settings(table: type[ConfigurationTable], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    for name, field in table.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, ConfigurationTable):
            yield from _list_settings(field.annotation, f"{name}.")
        yield from ((f"{prefix}{name}", one) for one in field.metadata if isinstance(one, Setting))


SETTINGS: dict[str, Setting] = dict(_list_settings(ProjectTables))
"""The settings that programs share, by their key in the project file."""
_KEYS = {setting.variable: key for key, setting in SETTINGS.items() if setting.variable}
OPTION_KEYS = {setting.option: key for key, setting in reversed(SETTINGS.items()) if setting.option}
"""The keys of the options that have the same meaning for all programs. `--identity` has one for each program."""


class Project:
    """The settings of a project file. Paths in it are relative to its folder."""

    def __init__(self, file: Path, content: Mapping[str, Any]) -> None:
        self.file, self._content = file, content

    @classmethod
    def read(cls, file: Path) -> "Project":
        """Read a project file.

        Raises:
            InvalidConfiguration: The file is not valid, or contains a secret.
        """
        content, text = read_toml(file), file.read_text()
        for key, value in _list_texts(content):
            if _is_secret(file.parent, key, value):
                name, line = key.rpartition(".")[2], next(_find_lines(text, value), "?")
                missing, other = ", or names a file that does not exist", ", or name a file that only you can read"
                if _SECRET_VALUE.search(value):  # a URL cannot be the name of a file
                    missing = other = ""
                raise InvalidConfiguration(
                    file,
                    key,
                    f"line {line} contains a secret{missing}. Put the secret into an environment variable and write "
                    f'{name} = "{PREFIX}NAME"{other}.',
                )
        try:
            ProjectTables.model_validate(content)
        except ValidationError as error:
            raise InvalidConfiguration(file, *describe_first_error(error)) from None
        return cls(file, content)

    def table(self, name: str) -> Mapping[str, Any]:
        """Return the options of a program that the file sets."""
        options: Mapping[str, Any] = self._content.get(name, {})
        return options

    def get(self, key: str) -> Any:
        """Return the value of a setting, or None. Paths are absolute, and references to variables are replaced.

        Raises:
            InvalidConfiguration: A variable or a file that the value refers to does not exist.
        """
        value: Any = self._content
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, list):
            return [self._resolve(key, entry) for entry in value]
        return None if value is None else self._resolve(key, value)

    def find(self, variable: str) -> Any:
        """Return the value that stands for an environment variable, or None."""
        return self.get(_KEYS[variable])

    def describe(self, key: str) -> str:
        """Return where a value comes from, for messages."""
        return f"from {self.file}, key {key}"

    def explain(self, text: str) -> str:
        """Return what to add to a message: the keys of the values in it that are from the file."""
        origins = ""
        for key, setting in SETTINGS.items() if str(self.file) not in text else ():
            with suppress(InvalidConfiguration):
                value = None if os.environ.get(setting.variable) or setting.kind == "secret" else self.get(key)
                # Names such as "default" also occur in messages by chance, unless they are quoted.
                is_name = setting.kind == "text" and key != "server.address"
                if isinstance(value, str) and value and _contains(text, repr(value) if is_name else value):
                    origins += f" ({value} is {self.describe(key)})"
        return origins

    def _resolve(self, key: str, value: Any) -> Any:
        kind = SETTINGS[key].kind
        if isinstance(value, dict):
            return f"{self.file}#{key}"
        if not isinstance(value, str) or (kind == "keys" and value.startswith(PREFIX)):
            return value
        if value.startswith(PREFIX):
            if content := os.environ.get(value.removeprefix(PREFIX)):
                return content
            raise InvalidConfiguration(self.file, key, f"the variable {value.removeprefix(PREFIX)} is not set.")
        if kind == "secret":
            return read_secret(self.file, key, value)
        is_path = kind != "text" and "://" not in value and not value.startswith("python:")
        return str(self.file.parent / os.path.expanduser(value)) if is_path else value


def _list_texts(content: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in a file with its dotted key. The entries of a list have the key of the list."""
    for name, value in content.items() if isinstance(content, dict) else ():
        yield from _list_texts(value, f"{key}.{name}" if key else name)
    for value in content if isinstance(content, list) else ():
        yield from _list_texts(value, key)
    if isinstance(content, str):
        yield key, content


def _is_secret(folder: Path, key: str, value: str) -> bool:
    """Return whether a text is a secret, or should refer to one but does not."""
    kind = SETTINGS[key].kind if key in SETTINGS else "text"
    if value.startswith(PREFIX) or kind == "keys":
        return describe_source(value) == PLACEHOLDER and not os.path.exists(folder / value)
    must_refer = kind == "secret" or (kind == "text" and _SECRET.search(key.rpartition(".")[2]))
    return bool(_SECRET_VALUE.search(value) or (must_refer and not os.path.isfile(folder / os.path.expanduser(value))))


def _contains(text: str, value: str) -> bool:
    """Return whether a message names a value, not another one that the value is a part of."""
    return bool(re.search(rf"(?<![\w.]){re.escape(value)}(?![\w-]|:\w)", text))


def _find_lines(text: str, value: str) -> Iterator[int]:
    first = value.partition("\n")[0]
    return (number for number, line in enumerate(text.splitlines(), 1) if first in line)


def load_project(place: str | Path | None = HERE) -> Project | None:
    """Return the project file at `place`, or the one in this folder or in the nearest folder above it.

    Args:
        place: A file, or a folder to search from. By default, WAYSTATION_PROJECT or else the current folder. None and
            "none" stand for no file.

    Raises:
        InvalidConfiguration: The file is not valid, or was found and belongs to another user.
    """
    named = (os.environ.get(PROJECT_ENV) or HERE) if str(place) == HERE else str(place)
    if place is None or named == NO_PROJECT:
        return None
    if not os.path.isdir(named):
        return Project.read(Path(named).absolute())
    try:
        folder = Path(named).absolute()
    except FileNotFoundError:  # the current folder was deleted
        return None
    for file in (parent / PROJECT_FILE for parent in (folder, *folder.parents)):
        if os.path.lexists(file):
            if not os.path.isfile(file):  # without its settings, a program might ask nobody for proof
                raise InvalidConfiguration(file, "", f"is not a file. Remove it, or use `{NO_PROJECT}` instead.")
            check_owner(file)
            return Project.read(file)
    return None


def check_owner(file: Path) -> None:
    """Check that nobody but this user and root can decide what a file contains, as git does with repositories.

    Raises:
        InvalidConfiguration: The file belongs to another user, or all users may change it.
    """
    if os.name != "posix":
        return
    link, status = os.lstat(file), os.stat(file)
    others = {link.st_uid, status.st_uid} - {ROOT, os.geteuid()}
    if others or status.st_mode & 0o002:
        problem = f"belongs to another user (ID {min(others)})" if others else "can be changed by all users"
        raise InvalidConfiguration(
            file,
            "",
            f"{problem}, who could redirect secrets and answers. If you trust it, name it with --project-file, "
            f"{PROJECT_ENV} or `project=`. To ignore it, use `{NO_PROJECT}` instead, or `project=None`.",
        )


class _Process:
    project: Project | None = None


def use_project(project: Project | None) -> None:
    """Let this process use a project file. Only Waystation's own programs call this."""
    _Process.project = project


def current_project() -> Project | None:
    """Return the project file of this process, or None in a program that is not Waystation's."""
    return _Process.project


def find_setting(variable: str, project: Project | None = None) -> str | None:
    """Return an environment variable, or the setting that stands for it in a project file, or None."""
    project = project or _Process.project
    value = os.environ.get(variable) or (project.find(variable) if project else None)
    return None if value is None else str(value)


def list_temporal_variables(address: str | None, profile: str | None, project: Project | None) -> dict[str, str]:
    """Return the settings of a project file for Temporal clients as the variables that they read.

    An option or a variable that names a profile replaces them all. One that names another address leaves only the
    namespace, because credentials must not be sent to another server.
    """
    project = project or _Process.project
    if project is None or profile or os.environ.get("TEMPORAL_PROFILE"):
        return {}
    is_other = address is not None or bool(os.environ.get("TEMPORAL_ADDRESS"))
    keys = [key for key in SETTINGS if key.startswith("server.") and (not is_other or key == "server.namespace")]
    values = {SETTINGS[key].variable: project.get(key) for key in keys if SETTINGS[key].variable}
    texts = {name: str(value) for name, value in values.items() if value is not None}
    return texts | {name: texts[name].lower() for name in ("TEMPORAL_TLS",) if name in texts}


def read_quotas(file: Path | None) -> "Quotas | None":
    """Read the quotas from `file`, or from the file named by WAYSTATION_QUOTAS. Return None if neither is set.

    Raises:
        InvalidConfiguration: The file is not valid.
    """
    name = file or find_setting(QUOTAS_ENV)
    if not name:
        return None
    from waystation.core.budget import Quotas  # not loaded by workers without quotas

    quotas, project = read_configuration(Path(name), Quotas), _Process.project
    if project and str(name) == f"{project.file}#quotas" and "://" not in quotas.store:
        return quotas.model_copy(update={"store": str(project.file.parent / quotas.store)})
    return quotas


def find_identity_file(variable: str) -> Path | None:
    """Return the identity file that a variable names, or None.

    WAYSTATION_IDENTITY names the workers' file. With a warning, it also stands for another variable that is not set,
    because it had this meaning before version 0.2.
    """
    if file := find_setting(variable):
        return Path(file)
    if old := os.environ.get(IDENTITY_ENV):
        problem = f"{IDENTITY_ENV} is for the identity file of workers. Set {variable} to this program's file instead."
        log.warning("identity.variable_deprecated", file=old, problem=problem)
    return Path(old) if old else None
