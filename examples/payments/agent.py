"""Payments that need approval by one person or two, depending on the amount."""

from datetime import timedelta

from waystation import ApprovalPolicy, ApprovalRule
from waystation.agents import Agent
from waystation.tools import FunctionTool

from .demo import demo_model as demo_model

ONE = ApprovalPolicy(comment=True, deadline=timedelta(days=2), reminders=(timedelta(hours=4),))
"""Anyone may approve, with a comment."""
# With `verified=False` the names are claims, so that the example runs without an identity provider.
TWO = ApprovalPolicy(approvers=("ann", "ben", "cleo"), quorum=2, verified=False, deadline=timedelta(days=2))
"""Two of three people must approve; one rejection ends it."""


def balance(account: str) -> dict[str, object]:
    """Return the balance of an account."""
    return {"account": account, "balance": 12_000}


def pay(payee: str, amount: float, purpose: str) -> dict[str, object]:
    """Pay an amount of money.

    Args:
        payee: Who receives it.
        amount: The amount in euros.
        purpose: What it is for.
    """
    # A real tool would make the payment here.
    return {"status": "paid", "payee": payee, "amount": amount}


def freeze(account: str) -> dict[str, str]:
    """Freeze an account, so that nothing can be paid from it."""
    return {"status": "frozen", "account": account}


root_agent = Agent(
    name="payments_agent",
    model="gemini-3.5-flash",
    description="Makes payments.",
    instruction="Make the requested payments, and report the results.",
    tools=[
        FunctionTool(balance, effect="read"),
        FunctionTool(pay, title="Pay {amount:,.2f} € to {payee}"),
        FunctionTool(freeze, title="Freeze account {account}", approval=ONE),
    ],
    approval_rules=[
        ApprovalRule(TWO, tools="pay", over={"amount": 1000}),
        ApprovalRule(ONE, tools="pay", over={"amount": 100}),
    ],
)
