"""Versioned files with names. The counterpart of ADK's `google.adk.artifacts`."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
