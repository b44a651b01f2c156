"""Memory: what is remembered over sessions. Where ADK has `google.adk.memory`."""

import importlib
from typing import TYPE_CHECKING

from waystation.memory.base_memory_service import BaseMemoryService

if TYPE_CHECKING:
    from activities.memory import SqliteMemoryService
    from waystation.memory.in_memory_memory_service import InMemoryMemoryService
    from waystation.memory.memory_entry import MemoryEntry, SearchMemoryResponse

__all__ = [
    "BaseMemoryService",
    "InMemoryMemoryService",
    "MemoryEntry",
    "SearchMemoryResponse",
    "SqliteMemoryService",
]

_MODULE_OF = {
    "InMemoryMemoryService": "waystation.memory.in_memory_memory_service",
    "MemoryEntry": "waystation.memory.memory_entry",
    "SearchMemoryResponse": "waystation.memory.memory_entry",
    # It does I/O, so it lives on that side of the tree.
    "SqliteMemoryService": "activities.memory",
}

if not TYPE_CHECKING:  # where it would make every misspelt name acceptable

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(module), name)
        return found
