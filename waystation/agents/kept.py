"""What is made of an agent or a tool once, and again when what it is made of has changed."""

from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


def kept(owner: object, name: str, made_of: Any, make: Callable[[], Made]) -> Made:
    """Return what `make` made when `owner` was last made of something else; `name` tells such things apart."""
    # On the owner, as functools.cached_property does, so that it goes when the owner goes.
    cached: tuple[Any, Made] | None = vars(owner).get(name)
    if cached is None or cached[0] != made_of:
        cached = vars(owner)[name] = made_of, make()
    return cached[1]
