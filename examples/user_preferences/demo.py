"""An offline stand-in for the model: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"

_PREFERENCE = re.compile(r"\bmy (?:favou?rite )?(\w+) is (.+?)[\s.!]*(?:$|\band (?=my\b))", re.IGNORECASE)


def reply(request: LlmRequest) -> LlmResponse:
    """Remember each `my … is …`, all at once; otherwise list what is remembered."""
    said, answers = latest_turn(request)
    told = _PREFERENCE.findall(said)
    if not answers:
        updates = [("update_user_preference", {"preference": name, "value": value.strip()}) for name, value in told]
        return calls(*(updates or [("list_user_preferences", {})]))
    if told:
        return says(f"{NAME} Remembered: {', '.join(str(answer.get('updated_preference')) for _, answer in answers)}.")
    known = "; ".join(f"{name}: {value}" for name, value in answers[-1][1].items())
    return says(f"{NAME} {known or 'I know nothing about you'}.")


demo_model = FunctionModel(reply, pace_s=0.05)
