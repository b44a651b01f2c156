"""Object storage for payloads that are too large for a history, and for data that must outlive its history.

Clients and workers must use the same store to read offloaded payloads.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
