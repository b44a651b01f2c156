"""Read TOML configuration files, and secrets from files or environment variables."""

import base64
import contextlib
import difflib
import getpass
import importlib.util
import os
import re
import shlex
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from waystation.core.errors import InvalidConfiguration

MAX_FILE_BYTES = 1_000_000
MIN_WEBHOOK_KEY_BYTES = 24
"""Minimum length of the key of a webhook, as required by Standard Webhooks."""
PREFIX = "env:"
"""Marks a secret that is stored in an environment variable, as in `env:NAME`."""
PLACEHOLDER = "(a value that is not a file name)"

_KEY = re.compile(
    rf"""
    ({PREFIX})?(
        .*[\n"{{].*|.*-----BEGIN.*              # JSON or PEM
        |(?=.*[A-Z])(?=.*[a-z])(?=.*[0-9])      # Base64, or the secret of a client
         (?!.*\.[a-z]{{2,5}}$)[\w+/.~-]{{20,}}={{0,2}}
        |[0-9A-Fa-f]{{32,}}
    )""",
    re.DOTALL | re.VERBOSE,
)
"""Matches what may be key material, which is sometimes given instead of the name of a file or variable."""

_secrets: dict[str, str] = {}
"""Values of variables that were removed from the environment, so that this process can read them again."""


class ConfigurationTable(BaseModel):
    """A table in a configuration file. An unknown key raises an error that lists the valid keys."""

    # Error messages must not contain values, because some of them are secret.
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, hide_input_in_errors=True)

    @classmethod
    def list_further_keys(cls) -> Collection[str]:
        """Return the keys that other packages provide for this table."""
        return ()

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, table: Any) -> Any:
        unknown = [key for key in table if key not in cls.model_fields] if isinstance(table, dict) else []
        if unknown and (unknown := [key for key in unknown if key not in cls.list_further_keys()]):
            raise ValueError(describe_unknown(unknown[0], cls.model_fields))
        return table


SectionType = TypeVar("SectionType", bound=BaseModel)


def describe_unknown(key: str, valid: Collection[str]) -> str:
    """Return the problem that a table does not have a key, with the most similar one that it has."""
    near = difflib.get_close_matches(key, valid, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"has no key {key!r}; the valid keys are {', '.join(valid)}{hint}"


def describe_source(name: str | Path) -> str:
    """Return a setting that names a file or variable for messages, or a placeholder if it may be a key itself."""
    return PLACEHOLDER if _KEY.fullmatch(str(name)) and not os.path.exists(name) else str(name)


def is_exposed(path: Path) -> bool:
    """Return whether other users can read or change a file.

    The group may read a file of root, as in libpq: Kubernetes mounts secrets this way.
    """
    if os.name != "posix" or not os.path.isfile(path):
        return False
    status = path.stat()
    return bool(status.st_mode & (0o037 if status.st_uid == 0 else 0o077))


def check_private(path: Path, file: object, key: str = "") -> None:
    """Check that no other user can read a file that contains a secret. `file` and `key` name the setting in errors.

    Raises:
        InvalidConfiguration: Others can read the file.
    """
    if is_exposed(path):
        name = shlex.quote(str(path))
        raise InvalidConfiguration(file, key, f"other users can read {name}. Run: chmod 600 {name}")


def read_configuration(file: Path, kind: type[SectionType]) -> SectionType:
    """Read a TOML file, or a table of one (see `read_toml`), and validate its content.

    Raises:
        InvalidConfiguration: The file is not valid. The message states the key and the remedy, but no values.
    """
    try:
        return kind.model_validate(read_toml(file))
    except ValidationError as error:
        raise InvalidConfiguration(file, *describe_first_error(error)) from None


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file, or of its table if `file` ends with `#` and the key of a table.

    Raises:
        InvalidConfiguration: The file cannot be read, or is not TOML.
    """
    name, mark, key = str(file).rpartition("#")
    is_table = bool(mark) and not file.exists()
    try:
        content = tomllib.loads(_read_text(Path(name) if is_table else file, file, "", ""))
        for part in key.split(".") if is_table else ():
            content = content[part]
        return content
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfiguration(file, "", f"is not TOML: {error}.") from None


def read_secret(file: Path, key: str, name: str, *, is_private: bool = True) -> str:
    """Return a secret that a configuration file refers to.

    Args:
        file: The configuration file.
        key: The key that refers to the secret, for error messages.
        name: A path relative to the folder of `file`, or `env:NAME` for an environment variable (see `pop_variable`).
        is_private: Whether to check that other users cannot read the file.

    Raises:
        InvalidConfiguration: The secret is missing or empty, or its file is too large, is not UTF-8 text, or can be
            read by other users.
    """
    shown = describe_source(name)
    if name.startswith(PREFIX):
        text = pop_variable(name.removeprefix(PREFIX)) or ""
        problem = f"the variable {shown.removeprefix(PREFIX)} is not set."
    else:
        path = file.parent / Path(name).expanduser()
        text = _read_text(path, file, key, shown)
        if is_private:
            check_private(path, file, key)
        problem = f"the file {shown} is empty."
    if not text.strip():
        raise InvalidConfiguration(file, key, problem)
    return text.strip()


def read_webhook_key(file: Path, key: str, name: str) -> bytes:
    """Return the secret of Standard Webhooks (`whsec_…`) that a configuration file refers to; see `read_secret`.

    Raises:
        InvalidConfiguration: The secret is missing, is not Base64 or is too short, or its library is not installed.
    """
    if importlib.util.find_spec("standardwebhooks") is None:
        problem = "needs 'standardwebhooks'; install it with: pip install 'waystation[notify]'"
        raise InvalidConfiguration(file, key, problem)
    try:
        # Decode the key here: standardwebhooks would silently skip characters that are not valid base64.
        secret = base64.b64decode(read_secret(file, key, name).removeprefix("whsec_"), validate=True)
    except ValueError:
        secret = b""
    if len(secret) < MIN_WEBHOOK_KEY_BYTES:
        problem = f"needs at least {MIN_WEBHOOK_KEY_BYTES} bytes as base64; create it with `openssl rand -base64 32`."
        raise InvalidConfiguration(file, key, problem)
    return secret


def _read_text(path: Path, file: Path, key: str, shown: str) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidConfiguration(file, key, f"{shown or file} is larger than {MAX_FILE_BYTES} bytes.")
        return path.read_text()
    except OSError as error:
        problem = f"{shown} cannot be read: {error.strerror}." if key else f"cannot be read: {error.strerror}."
    except UnicodeDecodeError:
        problem = f"{shown} is not UTF-8 text." if key else "is not UTF-8 text."
    raise InvalidConfiguration(describe_source(file), key, problem)


def describe_first_error(error: ValidationError) -> tuple[str, str]:
    """Return the dotted key of the first error and a description that contains no values."""
    (problem, *_) = error.errors(include_url=False, include_input=False, include_context=False)
    return ".".join(map(str, problem["loc"])), f"{problem['msg'].removeprefix('Value error, ')}."


def pop_variable(name: str) -> str | None:
    """Return an environment variable and remove it, so that child processes do not inherit it.

    Later calls in this process return the same value, or None if the variable was never set.
    """
    if name in os.environ:
        _secrets[name] = os.environ.pop(name)
    return _secrets.get(name)


def login_name() -> str | None:
    """Return the user's login name, or None if the user ID has no name."""
    with contextlib.suppress(OSError, KeyError, ImportError):  # the type depends on the Python version
        return getpass.getuser()
    return None
