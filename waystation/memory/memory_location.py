"""Open the memory service at a configured location."""

from pathlib import Path

from waystation.core.errors import StoreFailed
from waystation.memory.base_memory_service import BaseMemoryService
from waystation.memory.postgres_memory_service import PostgresMemoryService
from waystation.memory.sqlite_memory_service import SqliteMemoryService
from waystation.storage import is_postgres_url, load_store


def open_memory(place: str | Path) -> BaseMemoryService:
    """Return the service at a location: a file path, a PostgreSQL URL, `python:MODULE:NAME`, or another package's URL.

    `NAME` in your module is a service, or a class or function that returns one. A file is created on first use.

    Raises:
        StoreFailed: The URL is not valid, the name in the module is not a memory service, or the extra `postgres` is
            missing.
    """
    try:
        store = load_store(place, BaseMemoryService, "open_memory")  # type: ignore[type-abstract]  # only for isinstance
    except ValueError as error:
        raise StoreFailed(str(place), str(error)) from None
    if store is not None:
        return store
    return PostgresMemoryService(str(place)) if is_postgres_url(place) else SqliteMemoryService(place)
