"""An offline stand-in for the model: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name. It is a function of the
request alone, so a restarted worker gets the same reply.
"""

import json
import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"
LIMIT = 100
"""Dollars from which a manager is asked."""

_AMOUNT = re.compile(r"\$\s*(\d[\d,]*(?:\.\d+)?)|(\d[\d,]*(?:\.\d+)?)\s*(?:\$|dollars?\b|usd\b)", re.IGNORECASE)
_PURPOSE = re.compile(r"\bfor\s+(.+?)\s*[.!?]*\s*$", re.IGNORECASE | re.DOTALL)


def reply(request: LlmRequest) -> LlmResponse:
    """Return what the rules say to the user's last message and to what the tools answered since."""
    said, answers = latest_turn(request)
    amount, purpose = _amount(said), _purpose(said)
    if amount is None:
        return says(f"{NAME} I need an amount, as in: Please reimburse 50$ for meals")
    wanted = {"purpose": purpose, "amount": amount}
    if not answers:
        return calls(("reimburse" if amount < LIMIT else "ask_for_approval", wanted))
    tool, answer = answers[-1]
    what = f"{amount:g}$ for {purpose}"
    if tool == "reimburse":
        if answer.get("status") == "ok":
            return says(f"{NAME} {what}: reimbursed.")
        return says(f"{NAME} {what}: not reimbursed. {_text(answer)}")
    match answer.get("status"):
        case "approved":
            return calls(("reimburse", wanted))
        case "rejected":
            comment = answer.get("comment")
            return says(f"{NAME} {what}: rejected{f', with the comment: {comment}' if comment else ''}.")
        case "expired":
            return says(f"{NAME} {what}: not reimbursed, because nobody answered in time.")
        case "pending":
            return says(f"{NAME} {what}: waits for {answer.get('approver')}, ticket {answer.get('ticket-id')}.")
    if "error" in answer:
        return says(f"{NAME} {what}: not reimbursed. {answer['error']}")
    return says(f"{NAME} {what}: not decided yet. {_text(answer)}")


def _amount(text: str) -> float | None:
    found = _AMOUNT.search(text)
    return float((found[1] or found[2]).replace(",", "")) if found else None


def _purpose(text: str) -> str:
    found = _PURPOSE.search(text)
    return found[1] if found else "an unnamed purpose"


def _text(answer: dict[str, object]) -> str:
    return json.dumps(answer, ensure_ascii=False)


demo_model = FunctionModel(reply, pace_s=0.05)
