"""What an approver said about a call. The class is defined in `waystation.core`, which records it.

ADK's `google.adk.tools.tool_confirmation`.
"""

from waystation.core import ToolConfirmation

__all__ = ["ToolConfirmation"]
