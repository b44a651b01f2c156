"""Where ADK has `google.adk.auth.auth_tool`."""

from tools.auth import AuthConfig

__all__ = ["AuthConfig"]
