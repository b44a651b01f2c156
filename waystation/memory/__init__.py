"""What is remembered across sessions. ADK's `google.adk.memory`."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from waystation.memory.base_memory_service import BaseMemoryService
    from waystation.memory.in_memory_memory_service import InMemoryMemoryService
    from waystation.memory.memory_entry import MemoryEntry, SearchMemoryResponse
    from waystation.memory.sqlite_memory_service import SqliteMemoryService
__all__ = [
    "BaseMemoryService",
    "InMemoryMemoryService",
    "MemoryEntry",
    "SearchMemoryResponse",
    "SqliteMemoryService",
]

_EXPORTS = {
    "waystation.memory.base_memory_service": "BaseMemoryService",
    "waystation.memory.in_memory_memory_service": "InMemoryMemoryService",
    "waystation.memory.memory_entry": "MemoryEntry SearchMemoryResponse",
    "waystation.memory.sqlite_memory_service": "SqliteMemoryService",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
