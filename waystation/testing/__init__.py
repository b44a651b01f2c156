"""Test agents on real parts: a Temporal server, a worker, scripted models, scripted approvers, a fake Gemini."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
