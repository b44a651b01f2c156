"""Memory that lasts across sessions. The counterpart of ADK's `google.adk.memory`."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
