from waystation.plugins.base_plugin import BasePlugin
from waystation.plugins.base_plugin import overrides_callback as overrides_callback
from waystation.plugins.base_plugin import wrong_callbacks as wrong_callbacks
from waystation.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin, TrackingScope

__all__ = ["BasePlugin", "ReflectAndRetryToolPlugin", "TrackingScope"]
