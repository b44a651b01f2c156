"""What an agent can do. ADK's `google.adk.tools`.

For authors and for activities; workflows never import this. `import *` leaves out what needs an extra.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
