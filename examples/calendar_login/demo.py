"""An offline stand-in for the model: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name.
"""

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"


def reply(request: LlmRequest) -> LlmResponse:
    """Look into the calendar whatever the user says, then tell what is in it."""
    _, answers = latest_turn(request)
    if not answers:
        return calls(("list_events", {}))
    _, answer = answers[-1]
    if "events" not in answer:
        why = [str(answer[name]) for name in ("error", "comment") if answer.get(name)]
        return says(f"{NAME} I cannot look into the calendar. {' '.join(why)}")
    return says(f"{NAME} In the calendar: {', '.join(answer['events'])}.")


demo_model = FunctionModel(reply, pace_s=0.05)
