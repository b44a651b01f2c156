"""Support: a conversation about orders, with refunds that a colleague approves, and claims that the carrier answers."""

from datetime import timedelta

from company.models import MODEL
from company.resources import Carrier, Database, fetch, lifespan, pay

from waystation import Agent, App, ApprovalPolicy, External, FunctionTool, LongRunningFunctionTool, ToolContext

from .demo import demo_model as demo_model

LEAD = ApprovalPolicy(approvers=("role:support-lead",), deadline=timedelta(days=1), comment=True)


async def look_up_order(order: str, database: Database) -> dict[str, object]:
    """Look up an order by its number."""
    row = await fetch(database, "SELECT number, customer, total FROM orders WHERE number = %(order)s", order=order)
    return {**row, "total": float(row["total"])} if row else {"error": f"There is no order {order!r}."}


async def refund(order: str, database: Database, tool_context: ToolContext) -> dict[str, object]:
    """Refund an order."""
    found = await look_up_order(order, database)
    if "error" in found:
        return found
    key, customer, total = tool_context.idempotency_key, str(found["customer"]), float(str(found["total"]))
    return {"status": "refunded", "payment": await pay(database, key, customer, total, f"refund of {order}")}


async def file_claim(order: str, carrier: Carrier, tool_context: ToolContext) -> dict[str, str]:
    """Claim damages from the carrier for an order that was lost or damaged on its way."""
    claim = {"id": tool_context.idempotency_key, "order": order, "reply_to": tool_context.completion_url()}
    (await carrier.post("/claims", json=claim)).raise_for_status()
    return {"status": "claimed"}


root_agent = Agent(
    name="support_desk",
    model=MODEL,
    description="Helps customers with their orders.",
    instruction="Help with orders. Look an order up before you refund it or claim damages.",
    tools=[
        FunctionTool(look_up_order, effect="read"),
        FunctionTool(refund, title="Refund order {order}", approval=LEAD, effect="repeatable"),
        LongRunningFunctionTool(
            file_claim, answered_by=External("carrier"), deadline=timedelta(days=30), effect="repeatable"
        ),
    ],
)
app = App(name="support", root_agent=root_agent, lifespan=lifespan)
