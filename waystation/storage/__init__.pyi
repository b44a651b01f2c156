from waystation.storage.blobs import STORE_VARIABLE, BlobMissing, Blobs, payload_place
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
from waystation.storage.store_ids import StoreIds, list_differences
from waystation.storage.store_places import describe_place, is_on_this_machine, load_store, local_path, read_sqlite_id

__all__ = [
    "INLINE_LIMIT",
    "OFFLOAD_OVER",
    "STORE_VARIABLE",
    "UNREADABLE",
    "BlobMissing",
    "Blobs",
    "ObjectFiles",
    "PostgresDatabase",
    "StoreIds",
    "add_storage",
    "describe_place",
    "is_on_this_machine",
    "is_postgres_url",
    "is_reference",
    "list_differences",
    "list_shortened",
    "load_store",
    "local_path",
    "offloading",
    "payload_place",
    "read_sqlite_id",
    "retrieve_payloads",
    "unusable",
    "without_storage",
]
