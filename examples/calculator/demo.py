"""An offline stand-in for the model: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name, and only the tools calculate.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"
TOOLS = {"+": "calculator_add", "-": "calculator_subtract"}

_SUM = re.compile(r"\d+(?:\.\d+)?(?:\s*[+-]\s*\d+(?:\.\d+)?)+")
_TERM = re.compile(r"([+-]?)\s*(\d+(?:\.\d+)?)")


def reply(request: LlmRequest) -> LlmResponse:
    """Go through the sum from left to right, one call for each sign."""
    said, answers = latest_turn(request)
    found = _SUM.search(said)
    if found is None:
        return says(f"{NAME} I need a sum, as in: What is 5 - 3 + 10?")
    (_, first), *others = _TERM.findall(found[0])
    result = answers[-1][1].get("result") if answers else float(first)
    if not isinstance(result, int | float):
        return says(f"{NAME} No result. {answers[-1][1].get('error')}")
    if len(answers) < len(others):
        sign, number = others[len(answers)]
        return calls((TOOLS[sign], {"a": result, "b": float(number)}))
    return says(f"{NAME} {found[0]} = {result:g}")


demo_model = FunctionModel(reply, pace_s=0.05)
