"""Read TOML configuration files, and secrets from files or environment variables."""

import contextlib
import getpass
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from waystation.core import InvalidConfiguration

if TYPE_CHECKING:
    from waystation.core import Quotas

QUOTAS_ENV = "WAYSTATION_QUOTAS"
MAX_FILE_BYTES = 1_000_000
PREFIX = "env:"
"""Marks a secret that is stored in an environment variable, as in `env:NAME`."""

_secrets: dict[str, str] = {}
"""Values of variables that were removed from the environment, so that this process can read them again."""


class ConfigurationTable(BaseModel):
    """A table in a configuration file. An unknown key raises an error that lists the valid keys."""

    # Error messages must not contain values, because some of them are secret.
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, table: Any) -> Any:
        if isinstance(table, dict) and (unknown := [key for key in table if key not in cls.model_fields]):
            raise ValueError(f"has no key {unknown[0]!r}; the valid keys are {', '.join(cls.model_fields)}")
        return table


SectionType = TypeVar("SectionType", bound=BaseModel)


def read_configuration(file: Path, kind: type[SectionType]) -> SectionType:
    """Read a TOML file and validate its content.

    Raises:
        InvalidConfiguration: The file is not valid. The message states the key and the remedy, but no values.
    """
    try:
        return kind.model_validate(tomllib.loads(_read_text(file, file, "")))
    except ValidationError as error:
        raise InvalidConfiguration(file, *describe_first_error(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfiguration(file, "", f"is not TOML: {error}.") from None


def read_quotas(file: Path | None) -> "Quotas | None":
    """Read the quotas from `file`, or from the file named by WAYSTATION_QUOTAS. Return None if neither is set.

    Raises:
        InvalidConfiguration: The file is not valid.
    """
    name = file or os.environ.get(QUOTAS_ENV)
    if not name:
        return None
    from waystation.core import Quotas  # not loaded by workers without quotas

    return read_configuration(Path(name), Quotas)


def read_secret(file: Path, key: str, name: str) -> str:
    """Return a secret that a configuration file refers to.

    Args:
        file: The configuration file.
        key: The key that refers to the secret, for error messages.
        name: A path relative to the folder of `file`, or `env:NAME` for an environment variable (see `pop_variable`).

    Raises:
        InvalidConfiguration: The secret is missing or empty, or its file is too large or is not UTF-8 text.
    """
    if name.startswith(PREFIX):
        text = pop_variable(name.removeprefix(PREFIX)) or ""
        problem = f"the variable {name.removeprefix(PREFIX)} is not set."
    else:
        text = _read_text(file.parent / Path(name).expanduser(), file, key)
        problem = f"the file {name} is empty."
    if not text.strip():
        raise InvalidConfiguration(file, key, problem)
    return text.strip()


def _read_text(path: Path, file: Path, key: str) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidConfiguration(file, key, f"{path} is larger than {MAX_FILE_BYTES} bytes.")
        return path.read_text()
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}." if key else f"cannot be read: {error.strerror}."
    except UnicodeDecodeError:
        problem = f"{path} is not UTF-8 text." if key else "is not UTF-8 text."
    raise InvalidConfiguration(file, key, problem)


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
