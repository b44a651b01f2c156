"""Lists whose items are converted to genai's types when they are first read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


class LazyList(list[Any]):
    """A list of objects that are converted from their recorded form when they are first read.

    Most author code reads no item, or only the newest. Items that have not been converted are stored as their index in
    `plain`, which author code cannot change.
    """

    def __init__(self, plain: Sequence[Any], convert: Callable[[Any], Any]) -> None:
        super().__init__(range(len(plain)))
        self.plain = plain
        self._convert = convert
        self.converted: dict[int, tuple[Any, Any]] = {}
        """Converted items and their recorded forms, by the `id()` of the former, which this reference keeps in use."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        item = super().__getitem__(index)
        if type(item) is int:
            original = self.plain[item]
            self[index] = item = self._convert(original)
            self.converted[id(item)] = item, original
        return item

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while index < len(self):
            yield self[index]
            index += 1

    def pop(self, index: Any = -1) -> Any:
        item = self[index]
        del self[index]
        return item

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]

    def __reduce_ex__(self, protocol: Any) -> Any:  # copies and pickles are plain lists
        return list, ([*self],)

    def __reversed__(self) -> Iterator[Any]:
        for index in range(len(self) - 1, -1, -1):  # a program that looks for the newest match reads only a few items
            yield self[index]


def _convert_first(name: str) -> Callable[..., Any]:
    """Return a method of `list` that first converts all items."""

    def method(items: LazyList, *args: Any, **kwargs: Any) -> Any:
        for _ in items:
            pass
        return getattr(list, name)(items, *args, **kwargs)

    return method


_COMPARISONS = ("__contains__", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__", "count", "index", "remove")
for _method in (*_COMPARISONS, "__add__", "__mul__", "__repr__", "__rmul__", "copy", "sort"):
    setattr(LazyList, _method, _convert_first(_method))
