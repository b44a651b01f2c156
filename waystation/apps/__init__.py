"""Where ADK has `google.adk.apps`."""

from waystation.apps.app import App

__all__ = ["App"]
