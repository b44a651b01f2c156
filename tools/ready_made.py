"""Tools that most agents can use as they are: asking a person, and leaving a loop. Source: adk-semantics 2.3 and 9.2.

The descriptions are our own words; names, parameters and behaviour are ADK's.
"""

from typing import Any

from tools.context import ToolContext
from tools.long_running import LongRunningFunctionTool

REQUEST_INPUT = "adk_request_input"


class RequestInputTool(LongRunningFunctionTool):
    """The tool with which a model asks a person; `request_input` is the one instance that agents need."""

    def __init__(self) -> None:
        super().__init__(_request_input, effect="read")


def _request_input(message: str, response_schema: dict[str, Any] | None = None) -> None:
    """Ask the user something, and wait for the answer.

    Use it when you cannot go on without a clarification or a further piece of information.

    Args:
        message: The question, as the user shall read it.
        response_schema: JSON Schema of the answer that you need, such as {"type": "string"} for free text or
            {"type": "boolean"} for yes or no. Leave it out when any answer will do.
    """


_request_input.__name__ = REQUEST_INPUT

request_input = RequestInputTool()


def get_user_choice(options: list[str], tool_context: ToolContext) -> str | None:
    """Show the user these options, and ask for one of them."""
    tool_context.actions.skip_summarization = True
    return None


get_user_choice_tool = LongRunningFunctionTool(func=get_user_choice, effect="read")


def exit_loop(tool_context: ToolContext) -> None:
    """End the loop.

    Call it only if your instructions say when, and that is now.
    """
    tool_context.actions.escalate = True
    tool_context.actions.skip_summarization = True
