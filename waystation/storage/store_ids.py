"""The IDs of a process's stores, which show whether two processes use the same stores."""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path

import structlog

from waystation.core.errors import CredentialStoreError, StoreFailed

log = structlog.get_logger("waystation.storage")

OPTIONS = {"payloads": "--store", "artifacts": "--artifacts", "memory": "--memory", "credentials": "--credentials"}
"""The option that selects each store."""


LIMIT_S = 10.0
"""How long to wait for the ID of one store, in seconds. The clients of object stores retry for minutes."""
RETRY_S = 300.0
"""How long not to ask a store again whose ID could not be read, in seconds. Otherwise, every model call would wait."""


class StoreIds:
    """Reads the IDs of stores.

    Each ID is read only once, except that of a file or folder that does not exist yet. If that fails, it is read again
    after `RETRY_S`.
    """

    def __init__(self, **stores: object) -> None:
        """Take stores under their names in `OPTIONS`. Stores without a method `store_id` are ignored."""
        self._stores = {name: store for name, store in stores.items() if hasattr(store, "store_id")}
        self._ids: dict[str, str] = {}
        self._places = {name: place for name, store in stores.items() if (place := _find_place(store))}
        """The paths of stores that are files or folders."""
        self._retry_at: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    async def read(self) -> Mapping[str, str]:
        """Return the IDs by name. The ID of a store that does not exist yet is empty.

        A store that has no ID, or whose ID cannot be read, is left out.
        """
        for name, store in list(self._stores.items()):
            now = time.monotonic()
            if self._ids.get(name) or now < self._retry_at.get(name, 0):
                continue
            if name in self._ids and self._is_missing(name):
                continue
            if name in self._retry_at:
                self._retry_at[name] = now + RETRY_S  # so that concurrent model calls do not wait for it as well
            id: str | None = None
            try:
                async with asyncio.timeout(LIMIT_S):
                    id = await store.store_id()
            except (StoreFailed, CredentialStoreError, TimeoutError) as error:
                problem = str(error) or f"no answer within {LIMIT_S:g} s"
                log.warning("store.unavailable", store=OPTIONS[name], problem=problem)
                self._retry_at[name] = time.monotonic() + RETRY_S
                self._ids.pop(name, None)
                continue
            if id is None:
                self._stores.pop(name, None)  # a concurrent read may have done it
            else:
                self._ids[name] = id
        return self._ids

    def _is_missing(self, name: str) -> bool:
        # Most stores are missing until a tool uses them, so most model calls come here. A Path would take longer.
        return name in self._places and not os.path.exists(self._places[name])

    async def compare(self, recorded: Mapping[str, str] | None) -> dict[str, str] | None:
        """Return the IDs of this process's stores if any of them is not among the recorded ones, or else None.

        Log a warning for each store that another process recorded with a different ID.
        """
        own, recorded = await self.read(), recorded or {}
        for problem in list_differences(own, recorded):
            if problem not in self._reported:
                self._reported[problem] = problem
                log.warning("store.differs", problem=problem)
        known = {name: id for name, id in own.items() if id}
        return known if known.items() - recorded.items() else None


def _find_place(store: object) -> str | None:
    place = getattr(store, "path", None) or getattr(store, "folder", None)
    return str(place) if isinstance(place, Path) else None


def list_differences(own: Mapping[str, str], recorded: Mapping[str, str]) -> list[str]:
    """Return a description of each store whose ID differs from the recorded one."""
    return [
        f"{OPTIONS[name]} is {f'the store {own[name]}' if own[name] else 'an empty store'}, but another process "
        f"recorded the store {id}. Use the same {OPTIONS[name]} for all workers and clients."
        for name, id in sorted(recorded.items())
        if name in own and own[name] != id
    ]
