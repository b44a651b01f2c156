"""Session services for programs that use a `Runner`. Mirrors ADK's `google.adk.sessions` package."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
