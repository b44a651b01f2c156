"""An offline stand-in for the model: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"

_QUESTION = re.compile(r"\bin\s+([^?]+?)\s*\?\s*(.*)", re.IGNORECASE | re.DOTALL)


def reply(request: LlmRequest) -> LlmResponse:
    """Ask for the weather of the city before the question mark, then for the sentiment of what stands after it."""
    said, answers = latest_turn(request)
    asked = _QUESTION.search(said)
    if asked is None:
        return says(f"{NAME} I need a city, as in: What is the weather in London? I hate rain.")
    city, feeling = asked.groups()
    match [answer for _, answer in answers]:
        case []:
            return calls(("get_weather_report", {"city": city}))
        case [weather] if weather.get("status") == "success" and feeling:
            return calls(("analyze_sentiment", {"text": feeling}))
        case [weather]:
            return says(f"{NAME} {_report(weather)}")
        case [weather, sentiment, *_]:
            return says(f"{NAME} {_report(weather)} What you said sounds {sentiment.get('sentiment', 'unclear')}.")
    raise AssertionError("A list is empty, or has one item, or more.")


def _report(weather: dict[str, object]) -> object:
    return weather.get("report") or weather.get("error_message") or weather.get("error")


demo_model = FunctionModel(reply, pace_s=0.05)
