"""An offline stand-in for the model: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name. What it knows of earlier
messages it finds where a model would: in the contents of the request.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"

_CALLED = re.compile(r"\b(?:my name is|i am|i'm)\s+(\w+)", re.IGNORECASE)
_HOME = re.compile(r"\bi (?:live in|travel from)\s+([\w ]+?)\s*[.!?]*$", re.IGNORECASE)
_TRIP = re.compile(r"\b(?:book|need) a trip to\s+([\w ]+?)\s*[.!?]*$", re.IGNORECASE)
_HOME_SAID = re.compile(r"The user travels from (\S[^.\n]*)\.")


def reply(request: LlmRequest) -> LlmResponse:
    """Return what the rules say to the user's last message and to what the tools answered since."""
    said, answers = latest_turn(request)
    if answers:
        return says(f"{NAME} {_answered(*answers[-1])}")
    if found := _HOME.search(said):
        return calls(("remember_home", {"city": found[1]}))
    if found := _TRIP.search(said):
        return calls(("request_trip", {"destination": found[1]}))
    if "who am i" in said.lower():
        return says(f"{NAME} {_known(request)}")
    if found := _CALLED.search(said):
        return says(f"{NAME} Hello {found[1]}. Where do you want to go?")
    return says(f"{NAME} Say who you are, where you live, or: I need a trip to Lima.")


def _answered(tool: str, answer: dict[str, object]) -> str:
    if tool == "remember_home":
        return f"You travel from {answer.get('home')}."
    match answer.get("status"):
        case "pending":
            return f"The trip from {answer.get('from')} to {answer.get('to')} waits for your manager."
        case "approved":
            return "Your manager approved the trip."
        case "rejected":
            comment = answer.get("comment")
            return f"Your manager rejected the trip{f': {comment}' if comment else '.'}"
    return f"The trip is not decided: {answer.get('error') or answer.get('status')}."


def _known(request: LlmRequest) -> str:
    """Return what earlier messages and the user's state say of the user."""
    names = [
        found[1]
        for content in request.contents
        if content.get("role") == "user"
        for part in content.get("parts") or ()
        if (found := _CALLED.search(str(part.get("text") or ""))) and "who am i" not in str(part.get("text")).lower()
    ]
    home = _HOME_SAID.search(request.system_instruction or "")
    who = f"You are {names[-1]}" if names else "You have not said who you are"
    return f"{who}; you live in {home[1]}." if home else f"{who}; I do not know where you live."


demo_model = FunctionModel(reply, pace_s=0.02)
