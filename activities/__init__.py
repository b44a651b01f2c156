"""The activities: model calls, tool calls, and what the engine has done outside of workflows."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
