"""A demo model: a few rules in place of a language model, so that the example runs without an API key.

Every text begins with its name. Only the tools calculate.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"
TOOLS = {"+": "calculator_add", "-": "calculator_subtract"}

_SUM = re.compile(r"\d+(?:\.\d+)?(?:\s*[+-]\s*\d+(?:\.\d+)?)+")
_TERM = re.compile(r"([+-]?)\s*(\d+(?:\.\d+)?)")


def reply(request: LlmRequest) -> LlmResponse:
    """Evaluate the sum from left to right, with one call per sign."""
    message, responses = latest_turn(request)
    match = _SUM.search(message)
    if match is None:
        return says(f"{NAME} I need a sum, as in: What is 5 - 3 + 10?")
    (_, first), *others = _TERM.findall(match[0])
    result = responses[-1][1].get("result") if responses else float(first)
    if not isinstance(result, int | float):
        return says(f"{NAME} No result. {responses[-1][1].get('error')}")
    if len(responses) < len(others):
        sign, number = others[len(responses)]
        return calls((TOOLS[sign], {"a": result, "b": float(number)}))
    return says(f"{NAME} {match[0]} = {result:g}")


demo_model = FunctionModel(reply, pace_s=0.05)
