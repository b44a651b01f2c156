"""A demo model: a few rules in place of a language model, so that the example runs without an API key.

Every text begins with its name.
"""

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"


def reply(request: LlmRequest) -> LlmResponse:
    """Read the calendar for every message, then list its events."""
    _, responses = latest_turn(request)
    if not responses:
        return calls(("list_events", {}))
    _, response = responses[-1]
    if "events" not in response:
        why = [str(response[name]) for name in ("error", "comment") if response.get(name)]
        return says(f"{NAME} I cannot read the calendar. {' '.join(why)}")
    return says(f"{NAME} In the calendar: {', '.join(response['events'])}.")


demo_model = FunctionModel(reply, pace_s=0.05)
