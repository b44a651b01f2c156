from waystation.storage.blobs import STORE_VARIABLE, BlobMissing, Blobs
from waystation.storage.driver import (
    INLINE_LIMIT,
    OFFLOAD_OVER,
    UNREADABLE,
    add_storage,
    is_reference,
    list_shortened,
    offloading,
    retrieve_payloads,
    without_storage,
)
from waystation.storage.object_files import ObjectFiles, unusable
from waystation.storage.postgres import PostgresDatabase, is_postgres_url
from waystation.storage.store_places import load_store, local_path

__all__ = [
    "INLINE_LIMIT",
    "OFFLOAD_OVER",
    "STORE_VARIABLE",
    "UNREADABLE",
    "BlobMissing",
    "Blobs",
    "ObjectFiles",
    "PostgresDatabase",
    "add_storage",
    "is_postgres_url",
    "is_reference",
    "list_shortened",
    "load_store",
    "local_path",
    "offloading",
    "retrieve_payloads",
    "unusable",
    "without_storage",
]
