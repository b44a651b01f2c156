"""Where ADK has `google.adk.plugins`."""

from waystation.plugins.base_plugin import BasePlugin
from waystation.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin, TrackingScope

__all__ = ["BasePlugin", "ReflectAndRetryToolPlugin", "TrackingScope"]
