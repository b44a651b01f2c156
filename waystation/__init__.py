"""Durable ADK-style agents on Temporal. Each public name is loaded on first use.

`import waystation` loads neither Temporal nor a model SDK. This matters because workflow code imports
`waystation.core`, which also imports this module.
"""

from waystation.adk_names import install_finder
from waystation.lazy_exports import lazy_exports

install_finder()
__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
