"""The base class of models and the Gemini adapter. The counterpart of ADK's `google.adk.models`."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
