"""Tools for agents. ADK's `google.adk.tools`.

Authors and activities import this package; workflows never do. `import *` omits names that need an extra.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
