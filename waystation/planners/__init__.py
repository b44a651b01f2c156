"""Planners, which change an agent's requests and replies. Mirrors ADK's `google.adk.planners` package."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
