"""An offline stand-in for the model: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name.
"""

import re

from waystation.core import JsonObject
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"

_SYMBOL = re.compile(r"\b[A-Z]{3,5}\b")
_CURRENCY = re.compile(r"\bin (USD|EUR|[A-Z]{3})\b")
_DAYS = re.compile(r"\b(\d+) days? ago\b")


def reply(request: LlmRequest) -> LlmResponse:
    """Ask for the price of the first word in capitals, then tell it."""
    said, answers = latest_turn(request)
    symbol = _SYMBOL.search(said)
    if symbol is None:
        return says(f"{NAME} I need a symbol in capitals, as in: What does ALPH cost in EUR?")
    if answers:
        _, answer = answers[-1]
        if "price" not in answer:
            return says(f"{NAME} No price. {answer.get('error')}")
        return says(f"{NAME} {answer['symbol']}: {answer['price']} {answer['currency']}.")
    wanted: JsonObject = {"symbol": symbol[0]}
    if found := _DAYS.search(said):
        wanted["days_ago"] = int(found[1])
    if found := _CURRENCY.search(said):
        wanted["currency"] = found[1]
    return calls(("get_stock_price", wanted))


demo_model = FunctionModel(reply, pace_s=0.05)
