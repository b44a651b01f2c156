"""An offline stand-in for the models of both agents: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name.
"""

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"
CHECK = "check_and_transfer"


def reply(request: LlmRequest) -> LlmResponse:
    """As the main agent: have each query checked. As the support agent: take it over."""
    said, answers = latest_turn(request)
    if not any(tool["name"] == CHECK for tool in request.tools):
        return says(f"{NAME} The support agent takes over: {said}")
    if not answers:
        return calls((CHECK, {"query": said}))
    return says(f"{NAME} The main agent answers: {said}")


demo_model = FunctionModel(reply, pace_s=0.05)
