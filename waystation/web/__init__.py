"""The web application: the inbox, chats, invocations and the API, by itself or below a path of another application.

Requires the extra `web`.
"""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
