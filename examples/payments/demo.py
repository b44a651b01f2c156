"""An offline stand-in for the model: a few rules, so that the example runs without an API key.

It is no language model and does not pretend to be one: every text begins with its name.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[offline stand-in]"
_PAY = re.compile(r"\bpay\s+(\d+(?:\.\d+)?)\s+to\s+(\w+)\s+for\s+(.+?)\s*[.!]*$", re.IGNORECASE)
_FREEZE = re.compile(r"\bfreeze\s+(?:the\s+account\s+of\s+)?(\w+)", re.IGNORECASE)


def reply(request: LlmRequest) -> LlmResponse:
    """Return what the rules say to the user's last message and to what the tools answered since."""
    said, answers = latest_turn(request)
    if answers:
        _, answer = answers[-1]
        return says(f"{NAME} {answer['error'] if 'error' in answer else _told(answer)}")
    if found := _PAY.search(said):
        return calls(("pay", {"payee": found[2], "amount": float(found[1]), "purpose": found[3]}))
    if found := _FREEZE.search(said):
        return calls(("freeze", {"account": found[1]}))
    if "balance" in said.lower():
        return calls(("balance", {"account": "main"}))
    return says(f"{NAME} Tell me what to pay, as in: Pay 500 to Rose for the rent")


def _told(answer: dict[str, object]) -> str:
    if "balance" in answer:
        return f"There are {answer['balance']} euros in the account."
    if answer.get("status") == "paid":
        return f"{answer['amount']:g} euros are paid to {answer['payee']}."
    return f"The account of {answer.get('account')} is {answer.get('status')}."


demo_model = FunctionModel(reply, pace_s=0.05)
