"""The tool that lets a model ask the user for input."""

from typing import Any

from waystation.tools import LongRunningFunctionTool

REQUEST_INPUT = "adk_request_input"


class RequestInputTool(LongRunningFunctionTool):
    """A tool that a model calls to ask the user for input. Agents use the `request_input` instance."""

    def __init__(self) -> None:
        super().__init__(_request_input, effect="read")


def _request_input(message: str, response_schema: dict[str, Any] | None = None) -> None:
    """Ask the user something, and wait for the answer.

    Use it when you cannot continue without a clarification or a further piece of information.

    Args:
        message: The question, as the user shall read it.
        response_schema: JSON Schema of the answer that you need, such as {"type": "string"} for free text or
            {"type": "boolean"} for yes or no. Leave it out when any answer will do.
    """


_request_input.__name__ = REQUEST_INPUT


request_input = RequestInputTool()
