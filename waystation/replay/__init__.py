"""Read recordings, replay them against the present code, and re-run single activities."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
