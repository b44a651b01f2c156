"""The tool function that ends the loop of a LoopAgent."""

from waystation.tools import ToolContext


def exit_loop(tool_context: ToolContext) -> None:
    """End the loop.

    Call it only if your instructions say when, and that is now.
    """
    tool_context.actions.escalate = True
    tool_context.actions.skip_summarization = True
