"""Cache a value on an agent or tool until its inputs change."""

from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


def memoize(owner: object, name: str, made_of: Any, make: Callable[[], Made]) -> Made:
    """Return the result of `make`, cached under `name`; call it again only when `made_of` has changed."""
    # Stored on the owner, like functools.cached_property, so that both are freed together.
    cached: tuple[Any, Made] | None = vars(owner).get(name)
    if cached is None or cached[0] != made_of:
        cached = vars(owner)[name] = made_of, make()
    return cached[1]
