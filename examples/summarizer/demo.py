"""An offline stand-in for the models of both agents: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name, and it summarises nothing.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"


def reply(request: LlmRequest) -> LlmResponse:
    """As the agent that has a tool: pass the text on. As the other: repeat its first sentence."""
    said, _ = latest_turn(request)
    if request.tools:
        task, _, text = said.partition(":")
        if "summari" not in task.lower() or not text.strip():
            return says(f"{NAME} I need a text, as in: Summarise: It rained. Nobody came.")
        return calls(("summary_agent", {"request": text.strip()}))
    first = re.split(r"(?<=[.!?])\s", said, maxsplit=1)[0]
    return says(f"{NAME} {len(said.split())} words, which begin: {first}")


demo_model = FunctionModel(reply, pace_s=0.05)
