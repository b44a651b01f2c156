"""A demo model: a few rules in place of a language model, so that the example runs without an API key.

Every text begins with its name. It finds earlier messages where a language model would: in the contents of
the request.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"

_NAMED = re.compile(r"\b(?:my name is|i am|i'm)\s+(\w+)", re.IGNORECASE)
_HOME = re.compile(r"\bi (?:live in|travel from)\s+([\w ]+?)\s*[.!?]*$", re.IGNORECASE)
_TRIP = re.compile(r"\b(?:book|need) a trip to\s+([\w ]+?)\s*[.!?]*$", re.IGNORECASE)
_KNOWN_HOME = re.compile(r"The user travels from (\S[^.\n]*)\.")


def reply(request: LlmRequest) -> LlmResponse:
    """Reply to the user's last message and the tool responses since."""
    message, responses = latest_turn(request)
    if responses:
        return says(f"{NAME} {_describe(*responses[-1])}")
    if match := _HOME.search(message):
        return calls(("remember_home", {"city": match[1]}))
    if match := _TRIP.search(message):
        return calls(("request_trip", {"destination": match[1]}))
    if "who am i" in message.lower():
        return says(f"{NAME} {_recall(request)}")
    if match := _NAMED.search(message):
        return says(f"{NAME} Hello {match[1]}. Where do you want to go?")
    return says(f"{NAME} Say who you are, where you live, or: I need a trip to Lima.")


def _describe(tool: str, response: dict[str, object]) -> str:
    if tool == "remember_home":
        return f"You travel from {response.get('home')}."
    match response.get("status"):
        case "pending":
            return f"The trip from {response.get('from')} to {response.get('to')} waits for your manager."
        case "approved":
            return "Your manager approved the trip."
        case "rejected":
            comment = response.get("comment")
            return f"Your manager rejected the trip{f': {comment}' if comment else '.'}"
    return f"The trip is not decided: {response.get('error') or response.get('status')}."


def _recall(request: LlmRequest) -> str:
    """Return what earlier messages and the state contain about the user."""
    names = [
        match[1]
        for content in request.contents
        if content.get("role") == "user"
        for part in content.get("parts") or ()
        if (match := _NAMED.search(str(part.get("text") or ""))) and "who am i" not in str(part.get("text")).lower()
    ]
    home = _KNOWN_HOME.search(request.system_instruction or "")
    who = f"You are {names[-1]}" if names else "You have not said who you are"
    return f"{who}; you live in {home[1]}." if home else f"{who}; I do not know where you live."


demo_model = FunctionModel(reply, pace_s=0.02)
