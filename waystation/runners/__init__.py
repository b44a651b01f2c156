"""Runners, which let a program run its agents. Mirrors ADK's `google.adk.runners` module."""

from waystation.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
