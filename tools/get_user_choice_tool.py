"""A long-running tool that asks the user to choose one of several options."""

from waystation.tools import LongRunningFunctionTool, ToolContext


def get_user_choice(options: list[str], tool_context: ToolContext) -> str | None:
    """Show the user these options, and ask for one of them."""
    tool_context.actions.skip_summarization = True
    return None


get_user_choice_tool = LongRunningFunctionTool(func=get_user_choice, effect="read")
