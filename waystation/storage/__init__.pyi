from waystation.storage.blobs import STORE_VARIABLE, BlobMissing, Blobs
from waystation.storage.driver import (
    INLINE_LIMIT,
    OFFLOAD_OVER,
    UNREADABLE,
    inline,
    is_reference,
    offloading,
    retrieved,
    shortened,
    with_storage,
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
    "inline",
    "is_reference",
    "offloading",
    "retrieved",
    "shortened",
    "unusable",
    "with_storage",
]
