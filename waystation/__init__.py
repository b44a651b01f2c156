"""Durable ADK-style agents on Temporal: the public names, each loaded on first use.

`import waystation` alone loads neither Temporal nor a model SDK. Workflow code imports `waystation.core`, and so this
module.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
