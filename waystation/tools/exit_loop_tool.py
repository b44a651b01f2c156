"""Where ADK has `google.adk.tools.exit_loop_tool`."""

from tools import exit_loop

__all__ = ["exit_loop"]
