"""A demo model: a few rules in place of a language model, so that the example runs without an API key.

Every text begins with its name. Only the tool reads documents.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"

_KEEP = re.compile(r"\bkeep\s+(\S+?):\s*(.+)", re.IGNORECASE | re.DOTALL)
_ASK = re.compile(r"\bwhat does (\S+) say about (.+?)\s*\?", re.IGNORECASE)


def reply(request: LlmRequest) -> LlmResponse:
    """Keep the text after `Keep <name>:`; search for the words after `What does <name> say about`."""
    message, responses = latest_turn(request)
    if responses:
        return says(f"{NAME} {_describe(responses[-1][1])}")
    if keep := _KEEP.search(message):
        return calls(("keep_document", {"document_name": keep[1], "text": keep[2]}))
    if question := _ASK.search(message):
        return calls(("process_document", {"document_name": question[1], "analysis_query": question[2]}))
    return says(f"{NAME} Say: Keep report.txt: Sales rose. Costs fell. Or: What does report.txt say about sales?")


def _describe(response: dict[str, object]) -> str:
    match response:
        case {"document": name, "version": version}:
            return f"Kept {name}, version {version}."
        case {"found": list() as matches, "mentioned_before": before}:
            return f"{' '.join(matches) or 'Nothing.'} You mentioned it {before} times before."
        case {"error_message": problem, "documents": list() as known}:
            return f"{problem} There are: {', '.join(known) or 'none'}."
    return f"It failed. {response.get('error')}"


demo_model = FunctionModel(reply, pace_s=0.05)
