from waystation.plugins.base_plugin import BasePlugin
from waystation.plugins.base_plugin import misdeclared as misdeclared
from waystation.plugins.base_plugin import overrides as overrides
from waystation.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin, TrackingScope

__all__ = ["BasePlugin", "ReflectAndRetryToolPlugin", "TrackingScope"]
