"""Repeated attempts to use a store that is not available for a moment."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from waystation.core.errors import CredentialStoreError, KeyMissing, StoreFailed

PAUSE_S = 1.0
"""Pause between attempts."""
_NOT_REPEATABLE = ("save_artifact",)
"""Methods that would do their work twice if an attempt succeeded without reporting it."""
_T = TypeVar("_T")


async def try_again(work: Callable[[], Awaitable[_T]], within_s: float) -> _T:
    """Return what `work` returns. If the store is not available, repeat it for up to `within_s` seconds.

    Raises:
        StoreFailed: The store is still not available, or lacks a key.
        CredentialStoreError: The same for a credential store.
    """
    ends = time.monotonic() + within_s
    while True:
        try:
            return await work()
        except (StoreFailed, CredentialStoreError) as error:
            if isinstance(error, KeyMissing) or time.monotonic() + PAUSE_S > ends:
                raise
        await asyncio.sleep(PAUSE_S)


def retrying(service: _T, within_s: float) -> _T:
    """Return a service whose async methods are repeated if its store is not available; see `try_again`."""
    return cast("_T", _Retrying(service, within_s)) if within_s else service


class _Retrying:
    def __init__(self, service: object, within_s: float) -> None:
        self._service, self._within_s = service, within_s

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._service, name)
        if name in _NOT_REPEATABLE or not inspect.iscoroutinefunction(member):
            return member
        return lambda *args, **params: try_again(lambda: member(*args, **params), self._within_s)
