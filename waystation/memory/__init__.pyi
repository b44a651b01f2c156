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
