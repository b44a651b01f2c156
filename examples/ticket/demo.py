"""A demo model: a few rules in place of a language model, so that the example runs without an API key.

Every text begins with its name.
"""

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"


def reply(request: LlmRequest) -> LlmResponse:
    """Open a ticket for every message, then repeat its latest update."""
    message, responses = latest_turn(request)
    if not responses:
        urgent = any(word in message.lower() for word in ("urgent", "at once", "immediately"))
        return calls(("create_ticket", {"summary": message, "urgency": "high" if urgent else "normal"}))
    _, update = responses[-1]
    if "error" in update:
        return says(f"{NAME} No ticket. {update['error']}")
    details = [str(update[name]) for name in ("ticket_id", "message", "resolution", "comment") if update.get(name)]
    return says(f"{NAME} {update.get('status')}: {', '.join(details) or 'no details'}.")


demo_model = FunctionModel(reply, pace_s=0.05)
