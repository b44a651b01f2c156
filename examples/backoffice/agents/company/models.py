"""The model of all agents, and what their demo models have in common."""

import json
import os
from collections.abc import Callable
from typing import Any

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

MODEL = os.environ.get("BACKOFFICE_MODEL", "gemini-3.5-flash")
Call = tuple[str, dict[str, Any]]


def rules(choose: Callable[[str], list[Call]]) -> FunctionModel:
    """Return a demo model, which needs no API key: it makes the chosen calls, and then repeats their responses."""

    def reply(request: LlmRequest) -> LlmResponse:
        message, responses = latest_turn(request)
        if not responses:
            return calls(*chosen) if (chosen := choose(message)) else says("[demo model] I do not understand.")
        return says(f"[demo model] {json.dumps(dict(responses))}")

    return FunctionModel(reply, pace_s=0.05)
