"""A demo model: a few rules in place of a language model, so that the example runs without an API key.

Every text begins with its name.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"

_PREFERENCE = re.compile(r"\bmy (?:favou?rite )?(\w+) is (.+?)[\s.!]*(?:$|\band (?=my\b))", re.IGNORECASE)


def reply(request: LlmRequest) -> LlmResponse:
    """Store each `my … is …` in one batch; otherwise list the preferences."""
    message, responses = latest_turn(request)
    preferences = _PREFERENCE.findall(message)
    if not responses:
        updates = [
            ("update_user_preference", {"preference": name, "value": value.strip()}) for name, value in preferences
        ]
        return calls(*(updates or [("list_user_preferences", {})]))
    if preferences:
        return says(
            f"{NAME} Remembered: {', '.join(str(response.get('updated_preference')) for _, response in responses)}."
        )
    known = "; ".join(f"{name}: {value}" for name, value in responses[-1][1].items())
    return says(f"{NAME} {known or 'I know nothing about you'}.")


demo_model = FunctionModel(reply, pace_s=0.05)
