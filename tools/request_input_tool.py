"""Ask a person for input. Source: adk-semantics 2.3."""

from typing import Any

from waystation.tools import LongRunningFunctionTool

REQUEST_INPUT = "adk_request_input"


class RequestInputTool(LongRunningFunctionTool):
    """The tool with which a model asks a person for input. Agents use the instance `request_input`."""

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
