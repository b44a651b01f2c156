"""A demo model for both agents: rules in place of a language model, so that the example runs without an API key.

Every text begins with its name. It summarizes nothing.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"


def reply(request: LlmRequest) -> LlmResponse:
    """As the agent with the tool, pass the text on; as the other, repeat its first sentence."""
    message, _ = latest_turn(request)
    if request.tools:
        task, _, text = message.partition(":")
        if "summari" not in task.lower() or not text.strip():
            return says(f"{NAME} I need a text, as in: Summarize: It rained. Nobody came.")
        return calls(("summary_agent", {"request": text.strip()}))
    first = re.split(r"(?<=[.!?])\s", message, maxsplit=1)[0]
    return says(f"{NAME} {len(message.split())} words, which begin: {first}")


demo_model = FunctionModel(reply, pace_s=0.05)
