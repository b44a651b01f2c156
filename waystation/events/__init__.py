"""Events of conversations, with genai's types. Mirrors ADK's `google.adk.events` package."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
