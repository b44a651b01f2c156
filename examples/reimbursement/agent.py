"""The reimbursement agent of ADK's documentation: small amounts at once, larger ones after an approval."""

from waystation.agents import Agent
from waystation.tools import LongRunningFunctionTool, ToolContext

from .demo import demo_model as demo_model


def reimburse(purpose: str, amount: float) -> dict[str, str]:
    """Reimburse an amount of money to the employee.

    Args:
        purpose: What the money was spent on.
        amount: The amount in US dollars.
    """
    # A real tool would make the payment here.
    return {"status": "ok"}


def ask_for_approval(purpose: str, amount: float, tool_context: ToolContext) -> dict[str, object]:
    """Ask the manager to approve a reimbursement.

    Args:
        purpose: What the money was spent on.
        amount: The amount in US dollars.
    """
    # A real tool would create a ticket here. The key is the same in all attempts, so a repetition finds the ticket.
    ticket = f"ticket-{tool_context.idempotency_key}"
    tool_context.state["ticket"] = ticket
    return {"status": "pending", "approver": "Sean Zhou", "purpose": purpose, "amount": amount, "ticket-id": ticket}


root_agent = Agent(
    name="reimbursement_agent",
    model="gemini-3.5-flash",
    description="Handles the reimbursements of employees.",
    instruction="""\
You handle the reimbursement process for the employees.

If the amount is less than $100, reimburse it at once.
Otherwise ask the manager for approval first. If the manager approves, call reimburse() to reimburse the amount to the
employee. If the manager rejects, tell the employee so, and do not reimburse.
""",
    tools=[reimburse, LongRunningFunctionTool(func=ask_for_approval)],
)
