"""An offline stand-in for the model: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name.
"""

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"


def reply(request: LlmRequest) -> LlmResponse:
    """Open a ticket for whatever the user says, then repeat the last news of it."""
    said, answers = latest_turn(request)
    if not answers:
        urgent = any(word in said.lower() for word in ("urgent", "at once", "immediately"))
        return calls(("create_ticket", {"summary": said, "urgency": "high" if urgent else "normal"}))
    _, news = answers[-1]
    if "error" in news:
        return says(f"{NAME} No ticket. {news['error']}")
    details = [str(news[name]) for name in ("ticket_id", "message", "resolution", "comment") if news.get(name)]
    return says(f"{NAME} {news.get('status')}: {', '.join(details) or 'no details'}.")


demo_model = FunctionModel(reply, pace_s=0.05)
