"""Expense claims: small ones are paid at once, others after the approval of one manager or two."""

from datetime import timedelta

from company.models import MODEL
from company.resources import Database, lifespan, pay

from waystation import Agent, App, ApprovalPolicy, ApprovalRule, Escalation, FunctionTool, ToolContext, load_artifacts

from .demo import demo_model as demo_model

ONE = ApprovalPolicy(
    approvers=("role:manager",),
    not_requester=True,
    deadline=timedelta(days=7),
    reminders=(timedelta(days=1),),
    escalation=(Escalation(after=timedelta(days=2), to=("role:finance",)),),
)
"""A manager approves, and after two days the finance department may, too."""
TWO = ApprovalPolicy(**{**dict(ONE), "quorum": 2, "comment": True})
"""Two people approve, each with a comment."""


async def reimburse(
    amount: float, purpose: str, receipt: str, database: Database, tool_context: ToolContext
) -> dict[str, object]:
    """Reimburse an expense to the employee.

    Args:
        amount: The amount in euros.
        purpose: What the money was spent on.
        receipt: The name of the file with the receipt.
    """
    if receipt not in await tool_context.list_artifacts():
        return {"error": f"There is no receipt {receipt!r}."}
    number = await pay(database, tool_context.idempotency_key, tool_context.user_id, amount, purpose)
    return {"status": "paid", "payment": number}


root_agent = Agent(
    name="expense_desk",
    model=MODEL,
    description="Reimburses the expenses of employees.",
    instruction="Look at the receipt with load_artifacts, then call reimburse. Report the number of the payment.",
    tools=[
        load_artifacts,
        # The database recognizes the key, so a call that was interrupted may run again.
        FunctionTool(reimburse, title="Reimburse {amount:,.2f} € for {purpose}", effect="repeatable"),
    ],
    approval_rules=[
        ApprovalRule(TWO, tools="reimburse", over={"amount": 1000}),
        ApprovalRule(ONE, tools="reimburse", over={"amount": 100}),
    ],
)
app = App(name="expenses", root_agent=root_agent, lifespan=lifespan)
