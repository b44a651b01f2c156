"""The places at which two JSON values differ."""

from collections.abc import Iterator
from typing import Any

ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT", "__slots__": ()})()
"""The value of a place that one side does not have."""


def json_differences(one: Any, other: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each place at which they differ, such as `response.items[0].price`, with both values."""
    match one, other:
        case dict(), dict():
            for key in dict.fromkeys([*one, *other]):
                at = f"{place}.{key}" if place else str(key)
                yield from json_differences(one.get(key, ABSENT), other.get(key, ABSENT), at)
        case list(), list() if len(one) == len(other):
            for index, (left, right) in enumerate(zip(one, other, strict=True)):
                yield from json_differences(left, right, f"{place}[{index}]")
        case _:
            # 1 and True are equal in Python, but not to a model.
            if type(one) is not type(other) or one != other:
                yield place, one, other
