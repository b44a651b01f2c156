"""Support: a conversation about orders, with refunds that a colleague approves."""

from datetime import timedelta

from company import database
from company.models import MODEL

from waystation import Agent, ApprovalPolicy, FunctionTool, ToolContext

from .demo import demo_model as demo_model

LEAD = ApprovalPolicy(approvers=("role:support-lead",), deadline=timedelta(days=1), comment=True)


async def look_up_order(order: str) -> dict[str, object]:
    """Look up an order by its number."""
    row = await database.fetch("SELECT number, customer, total FROM orders WHERE number = %(order)s", order=order)
    return {**row, "total": float(row["total"])} if row else {"error": f"There is no order {order!r}."}


async def refund(order: str, tool_context: ToolContext) -> dict[str, object]:
    """Refund an order."""
    found = await look_up_order(order)
    if "error" in found:
        return found
    key, customer, total = tool_context.idempotency_key, str(found["customer"]), float(str(found["total"]))
    return {"status": "refunded", "payment": await database.pay(key, customer, total, f"refund of {order}")}


root_agent = Agent(
    name="support_desk",
    model=MODEL,
    description="Helps customers with their orders.",
    instruction="Help with orders. Look an order up before you refund it.",
    tools=[
        FunctionTool(look_up_order, effect="read"),
        FunctionTool(refund, title="Refund order {order}", approval=LEAD, effect="repeatable"),
    ],
)
