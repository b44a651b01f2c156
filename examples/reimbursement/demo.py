"""A demo model: a few rules in place of a language model, so that the example runs without an API key.

Every text begins with its name. It is a function of the request alone, so a restarted worker gets
the same reply.
"""

import json
import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"
LIMIT = 100
"""Amounts of at least this many dollars need the manager's approval."""

_AMOUNT = re.compile(r"\$\s*(\d[\d,]*(?:\.\d+)?)|(\d[\d,]*(?:\.\d+)?)\s*(?:\$|dollars?\b|usd\b)", re.IGNORECASE)
_PURPOSE = re.compile(r"\bfor\s+(.+?)\s*[.!?]*\s*$", re.IGNORECASE | re.DOTALL)


def reply(request: LlmRequest) -> LlmResponse:
    """Reply to the user's last message and the tool responses since."""
    message, responses = latest_turn(request)
    amount, purpose = _amount(message), _purpose(message)
    if amount is None:
        return says(f"{NAME} I need an amount, as in: Please reimburse 50$ for meals")
    args = {"purpose": purpose, "amount": amount}
    if not responses:
        return calls(("reimburse" if amount < LIMIT else "ask_for_approval", args))
    tool, response = responses[-1]
    what = f"{amount:g}$ for {purpose}"
    if tool == "reimburse":
        if response.get("status") == "ok":
            return says(f"{NAME} {what}: reimbursed.")
        return says(f"{NAME} {what}: not reimbursed. {_text(response)}")
    match response.get("status"):
        case "approved":
            return calls(("reimburse", args))
        case "rejected":
            comment = response.get("comment")
            return says(f"{NAME} {what}: rejected{f', with the comment: {comment}' if comment else ''}.")
        case "expired":
            return says(f"{NAME} {what}: not reimbursed, because nobody answered in time.")
        case "pending":
            return says(f"{NAME} {what}: waits for {response.get('approver')}, ticket {response.get('ticket-id')}.")
    if "error" in response:
        return says(f"{NAME} {what}: not reimbursed. {response['error']}")
    return says(f"{NAME} {what}: not decided yet. {_text(response)}")


def _amount(text: str) -> float | None:
    match = _AMOUNT.search(text)
    return float((match[1] or match[2]).replace(",", "")) if match else None


def _purpose(text: str) -> str:
    match = _PURPOSE.search(text)
    return match[1] if match else "an unnamed purpose"


def _text(response: dict[str, object]) -> str:
    return json.dumps(response, ensure_ascii=False)


demo_model = FunctionModel(reply, pace_s=0.05)
