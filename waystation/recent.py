"""Keep what was used lately."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """What is made for a name when it is first used; of too many, the one used longest ago goes."""

    def __init__(self, make: Callable[[str], T], *, most: int) -> None:
        self._make, self._most = make, most
        self._kept: OrderedDict[str, T] = OrderedDict()

    def of(self, name: str) -> T:
        """Return what is kept for a name."""
        if name not in self._kept:
            self._kept[name] = self._make(name)
        self._kept.move_to_end(name)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return self._kept[name]

    def drop(self, name: str) -> None:
        """Forget a name."""
        self._kept.pop(name, None)
