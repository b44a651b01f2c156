"""Values computed once for an agent or a tool, and again when what they depend on has changed."""

from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


def memoize(owner: object, name: str, made_of: Any, make: Callable[[], Made]) -> Made:
    """Return what `make` returns, computed again only when `made_of` differs from the last call; `name` is the key."""
    # On the owner, as functools.cached_property does, so that it goes when the owner goes.
    cached: tuple[Any, Made] | None = vars(owner).get(name)
    if cached is None or cached[0] != made_of:
        cached = vars(owner)[name] = made_of, make()
    return cached[1]
