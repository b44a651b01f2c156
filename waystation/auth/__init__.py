"""Credentials for tools, and logins of their users. Mirrors ADK's `google.adk.auth` package."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
