"""Sections of configuration files: what may stand in one, and what is said of what may not."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator


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
