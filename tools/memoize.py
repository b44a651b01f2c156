"""Cache a value on an agent or tool until the inputs of the computation change."""

from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


def memoize(owner: object, name: str, made_of: Any, make: Callable[[], Made]) -> Made:
    """Return the result of `make`, cached on `owner` as `name`. Call `make` again only when `made_of` has changed."""
    # The cache is an attribute of the owner, as in functools.cached_property, so that both are freed together.
    cached: tuple[Any, Made] | None = vars(owner).get(name)
    if cached is None or cached[0] != made_of:
        cached = vars(owner)[name] = made_of, make()
    return cached[1]
