"""Configuration: tables of configuration files, and secrets from the environment."""

import os
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

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
