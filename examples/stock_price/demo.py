"""A demo model: a few rules in place of a language model, so that the example runs without an API key.

Every text begins with its name.
"""

import re

from waystation.core.payload import JsonObject
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"

_SYMBOL = re.compile(r"\b[A-Z]{3,5}\b")
_CURRENCY = re.compile(r"\bin (USD|EUR|[A-Z]{3})\b")
_DAYS = re.compile(r"\b(\d+) days? ago\b")


def reply(request: LlmRequest) -> LlmResponse:
    """Look up the price of the first word in capitals, then report it."""
    message, responses = latest_turn(request)
    symbol = _SYMBOL.search(message)
    if symbol is None:
        return says(f"{NAME} I need a symbol in capitals, as in: What does ALPH cost in EUR?")
    if responses:
        _, response = responses[-1]
        if "price" not in response:
            return says(f"{NAME} No price. {response.get('error')}")
        return says(f"{NAME} {response['symbol']}: {response['price']} {response['currency']}.")
    args: JsonObject = {"symbol": symbol[0]}
    if match := _DAYS.search(message):
        args["days_ago"] = int(match[1])
    if match := _CURRENCY.search(message):
        args["currency"] = match[1]
    return calls(("get_stock_price", args))


demo_model = FunctionModel(reply, pace_s=0.05)
