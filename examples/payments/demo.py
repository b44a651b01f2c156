"""A demo model: a few rules in place of a language model, so that the example runs without an API key.

Every text begins with its name.
"""

import re

from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, calls, latest_turn, says

NAME = "[demo model]"
_PAY = re.compile(r"\bpay\s+(\d+(?:\.\d+)?)\s+to\s+(\w+)\s+for\s+(.+?)\s*[.!]*$", re.IGNORECASE)
_FREEZE = re.compile(r"\bfreeze\s+(?:the\s+account\s+of\s+)?(\w+)", re.IGNORECASE)


def reply(request: LlmRequest) -> LlmResponse:
    """Reply to the user's last message and the tool responses since."""
    message, responses = latest_turn(request)
    if responses:
        _, response = responses[-1]
        return says(f"{NAME} {response['error'] if 'error' in response else _describe(response)}")
    if match := _PAY.search(message):
        return calls(("pay", {"payee": match[2], "amount": float(match[1]), "purpose": match[3]}))
    if match := _FREEZE.search(message):
        return calls(("freeze", {"account": match[1]}))
    if "balance" in message.lower():
        return calls(("balance", {"account": "main"}))
    return says(f"{NAME} Tell me what to pay, as in: Pay 500 to Rose for the rent")


def _describe(response: dict[str, object]) -> str:
    if "balance" in response:
        return f"There are {response['balance']} euros in the account."
    if response.get("status") == "paid":
        return f"{response['amount']:g} euros are paid to {response['payee']}."
    return f"The account of {response.get('account')} is {response.get('status')}."


demo_model = FunctionModel(reply, pace_s=0.05)
