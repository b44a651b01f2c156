"""What is too large for a history, or must outlive one: kept in an object store by content.

For clients and workers alike; whoever reads a history in which payloads were put aside needs the same store.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
