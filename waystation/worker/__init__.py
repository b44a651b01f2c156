"""Workers: agents as a Temporal plugin, and the program that serves them."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
