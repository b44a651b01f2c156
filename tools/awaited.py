"""Coroutine methods that say so when they are used without `await`.

ADK's guide calls `tool_context.save_artifact(...)` without it. A bare coroutine would then do nothing in silence, and
reach the model as a result that cannot be recorded.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from waystation.core.errors import WaystationError

P = ParamSpec("P")
T = TypeVar("T")


class NotAwaited(WaystationError, TypeError, AttributeError):
    """The result of a coroutine method was used, or left alone, before it was awaited.

    Also an AttributeError, so that `hasattr` and whatever else looks at objects goes on working.
    """

    def __init__(self, *methods: str) -> None:
        self.methods = methods
        names = ", ".join(f"`{name}`" for name in methods)
        super().__init__(
            f"{names} of the context did nothing, because it was not awaited. "
            f"Write `await tool_context.{methods[0]}(...)`, in a tool that is an `async def`."
        )


class Unawaited(Coroutine[Any, Any, T]):
    """A call of a coroutine method: to be awaited, or given to asyncio like any coroutine; refuses anything else."""

    def __init__(
        self, method: Callable[[], Coroutine[Any, Any, T]], name: str, known: dict[int, Unawaited[Any]]
    ) -> None:
        self._method = method
        self._name = name
        self._known = known
        # Made when it is awaited: Python warns of one that is made and left, where nobody reads it.
        self._coroutine: Coroutine[Any, Any, T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return (yield from self._started().__await__())

    def send(self, value: Any, /) -> Any:
        """Go on; called by event loops."""
        return self._started().send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an exception; called by event loops."""
        return self._started().throw(*error)

    def close(self) -> None:
        """End it; one that was closed on purpose was not forgotten."""
        self._started().close()

    def _started(self) -> Coroutine[Any, Any, T]:
        self._known.pop(id(self), None)
        if self._coroutine is None:
            self._coroutine = self._method()
        return self._coroutine

    def __repr__(self) -> str:
        return f"<{self._name}(...), which was not awaited>"

    def __getattr__(self, name: str) -> NoReturn:
        raise NotAwaited(self._name)


def _refuse(self: Unawaited[Any], *_: object) -> NoReturn:
    raise NotAwaited(self._name)


# Not __repr__ and __hash__, which debuggers, logs and asyncio need.
_REFUSED = """
    bool str format len int float index iter getitem setitem delitem contains
    eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv mod
"""
for _operation in _REFUSED.split():
    setattr(Unawaited, f"__{_operation}__", _refuse)


class Remembers(Protocol):
    """A context: it knows the calls that nobody has awaited yet."""

    _unawaited: dict[int, Unawaited[Any]]


C = TypeVar("C", bound=Remembers)


def must_be_awaited(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """Have the context know the calls of a coroutine method until they are awaited."""

    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(context: C, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        signature.bind(context, *args, **kwargs)  # wrong arguments are said where they are given
        bound = functools.partial(method, context, *args, **kwargs)
        made = Unawaited(bound, method.__name__, context._unawaited)
        context._unawaited[id(made)] = made
        return made

    return call
