"""Kept histories do not reveal the machine on which they were recorded."""

from typing import Any


def without_machine(value: Any) -> Any:
    """Return a history without the names of the machine: paths in stack traces, and the user."""
    match value:
        case dict():
            return {
                key: "worker" if key == "identity" else without_machine(item)
                for key, item in value.items()
                if key != "stackTrace"
            }
        case list():
            return [without_machine(item) for item in value]
        case _:
            return value
