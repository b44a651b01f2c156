"""Tools for agents, the counterpart of ADK's `google.adk.tools`.

Agent definitions and activities import this package; workflows never do. `import *` omits names that require an
optional extra.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
