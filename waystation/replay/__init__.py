"""Read recordings, replay them against the current code, and re-run individual activities.

Modules are loaded on first use.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
