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

__all__ = [
    "INLINE_LIMIT",
    "OFFLOAD_OVER",
    "STORE_VARIABLE",
    "UNREADABLE",
    "BlobMissing",
    "Blobs",
    "ObjectFiles",
    "add_storage",
    "is_reference",
    "list_shortened",
    "offloading",
    "retrieve_payloads",
    "unusable",
    "without_storage",
]
