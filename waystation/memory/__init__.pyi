from waystation.memory.base_memory_service import BaseMemoryService
from waystation.memory.in_memory_memory_service import InMemoryMemoryService
from waystation.memory.memory_entry import MemoryEntry, SearchMemoryResponse
from waystation.memory.memory_location import open_memory
from waystation.memory.postgres_memory_service import PostgresMemoryService
from waystation.memory.sqlite_memory_service import SqliteMemoryService

__all__ = [
    "BaseMemoryService",
    "InMemoryMemoryService",
    "MemoryEntry",
    "PostgresMemoryService",
    "SearchMemoryResponse",
    "SqliteMemoryService",
    "open_memory",
]
