"""What is too large for a history, or must outlive one: kept in an object store by content.

For clients and workers alike; whoever reads a history in which payloads were put aside needs the same store.
"""

from waystation.storage.blobs import Blobs

__all__ = ["Blobs"]
