"""Replay histories against the code at hand, and rebuild what they recorded."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
