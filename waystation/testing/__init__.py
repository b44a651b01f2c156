"""Test agents on a real Temporal server and worker, using scripted models, scripted approvers and a fake Gemini."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
