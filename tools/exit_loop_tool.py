"""The function that ends a LoopAgent. Source: adk-semantics 9.2."""

from waystation.tools import ToolContext


def exit_loop(tool_context: ToolContext) -> None:
    """End the loop.

    Call it only if your instructions say when, and that is now.
    """
    tool_context.actions.escalate = True
    tool_context.actions.skip_summarization = True
