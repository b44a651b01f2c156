"""A demo model: a few rules in place of a language model, so that the example runs without an API key.

Every text begins with its name.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"

_QUESTION = re.compile(r"\bin\s+([^?]+?)\s*\?\s*(.*)", re.IGNORECASE | re.DOTALL)


def reply(request: LlmRequest) -> LlmResponse:
    """Get the weather of the city before the question mark, then the sentiment of the text after it."""
    message, responses = latest_turn(request)
    question = _QUESTION.search(message)
    if question is None:
        return says(f"{NAME} I need a city, as in: What is the weather in London? I hate rain.")
    city, feeling = question.groups()
    match [response for _, response in responses]:
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
