"""What a kept history does not tell: on which machine it was recorded."""

from typing import Any


def without_machine(value: Any) -> Any:
    """Return a history without what names the machine: paths in stack traces, and who ran it."""
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
