"""Configuration: tables of configuration files, and secrets from the environment."""

import contextlib
import getpass
import os
import tomllib
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from waystation.core import InvalidConfiguration

MAX_FILE_BYTES = 1_000_000
PREFIX = "env:"
"""How a configuration says that a secret is in a variable: `env:NAME`."""

_taken: dict[str, str] = {}
"""A second reader in this process is not told that it was never set."""


class Section(BaseModel):
    """A table of a file. Of a key that it does not have it is said which there are."""

    # Of values nothing is said: some are secret.
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _has_no_others(cls, given: Any) -> Any:
        if isinstance(given, dict) and (unknown := [key for key in given if key not in cls.model_fields]):
            raise ValueError(f"has no key {unknown[0]!r}; there are {', '.join(cls.model_fields)}")
        return given


SectionType = TypeVar("SectionType", bound=Section)


def read_configuration(file: Path, kind: type[SectionType]) -> SectionType:
    """Read a TOML file.

    Raises:
        InvalidConfiguration: It cannot be used; the error says which key, and what to change, and holds no value.
    """
    try:
        return kind.model_validate(tomllib.loads(_read_text(file, file, "")))
    except ValidationError as error:
        raise InvalidConfiguration(file, *first_fault(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfiguration(file, "", f"is not TOML: {error}.") from None


def read_secret(file: Path, key: str, name: str) -> str:
    """Return what a file beside the configuration `file` holds, or with `env:NAME` a variable, which then is removed:
    child processes inherit it.

    Raises:
        InvalidConfiguration: It is not there, or empty.
    """
    if name.startswith(PREFIX):
        text = take(name.removeprefix(PREFIX)) or ""
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
            raise InvalidConfiguration(file, key, f"{path} has more than {MAX_FILE_BYTES} bytes.")
        return path.read_text()
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}." if key else f"cannot be read: {error.strerror}."
    except UnicodeDecodeError:
        problem = f"{path} is no text." if key else "is no text."
    raise InvalidConfiguration(file, key, problem)


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return where the first mistake is, with dots between keys, and what it is. That holds no value."""
    (problem, *_) = error.errors(include_url=False, include_input=False, include_context=False)
    return ".".join(map(str, problem["loc"])), f"{problem['msg'].removeprefix('Value error, ')}."


def take(name: str) -> str | None:
    """Return what a variable holds, or held when it was taken; None when it was never set.

    It is removed from the environment: programs that this process starts would inherit it.
    """
    found = os.environ.pop(name, None)
    if found is not None:
        _taken[name] = found
    return _taken.get(name)


def login_name() -> str | None:
    """Return the name of the operating system's user; None for a user id without a name."""
    with contextlib.suppress(OSError, KeyError, ImportError):  # which of them depends on the Python version
        return getpass.getuser()
    return None
