"""A demo model for both agents: rules in place of a language model, so that the example runs without an API key.

Every text begins with its name.
"""

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"
CHECK = "check_and_transfer"


def reply(request: LlmRequest) -> LlmResponse:
    """As the main agent, check each query; as the support agent, take it over."""
    message, responses = latest_turn(request)
    if not any(tool["name"] == CHECK for tool in request.tools):
        return says(f"{NAME} The support agent takes over: {message}")
    if not responses:
        return calls((CHECK, {"query": message}))
    return says(f"{NAME} The main agent answers: {message}")


demo_model = FunctionModel(reply, pace_s=0.05)
