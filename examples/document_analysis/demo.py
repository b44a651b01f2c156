"""An offline stand-in for the model: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name, and only the tool reads.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"

_KEEP = re.compile(r"\bkeep\s+(\S+?):\s*(.+)", re.IGNORECASE | re.DOTALL)
_ASK = re.compile(r"\bwhat does (\S+) say about (.+?)\s*\?", re.IGNORECASE)


def reply(request: LlmRequest) -> LlmResponse:
    """Keep what follows `Keep <name>:`; look up what follows `What does <name> say about`."""
    said, answers = latest_turn(request)
    if answers:
        return says(f"{NAME} {_told(answers[-1][1])}")
    if kept := _KEEP.search(said):
        return calls(("keep_document", {"document_name": kept[1], "text": kept[2]}))
    if asked := _ASK.search(said):
        return calls(("process_document", {"document_name": asked[1], "analysis_query": asked[2]}))
    return says(f"{NAME} Say: Keep report.txt: Sales rose. Costs fell. Or: What does report.txt say about sales?")


def _told(answer: dict[str, object]) -> str:
    match answer:
        case {"document": name, "version": version}:
            return f"Kept {name}, version {version}."
        case {"found": list() as found, "mentioned_before": before}:
            return f"{' '.join(found) or 'Nothing.'} You mentioned it {before} times before."
        case {"error_message": problem, "documents": list() as known}:
            return f"{problem} There are: {', '.join(known) or 'none'}."
    return f"It failed. {answer.get('error')}"


demo_model = FunctionModel(reply, pace_s=0.05)
