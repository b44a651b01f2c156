"""The transfer example of ADK's documentation: a tool hands urgent queries to another agent."""

from waystation.agents import Agent
from waystation.tools import ToolContext

from .demo import demo_model as demo_model


def check_and_transfer(query: str, tool_context: ToolContext) -> str:
    """Check whether a query is urgent, and transfer to the support agent if so.

    Args:
        query: What the user wants, word for word.
    """
    if "urgent" in query.lower():
        # Takes effect when the response is recorded; the other agent continues in the same conversation.
        tool_context.actions.transfer_to_agent = "support_agent"
        return "Transferring to the support agent."
    return "The query is not urgent; answer it yourself."


main_agent = Agent(
    name="main_agent",
    model="gemini-3.5-flash",
    description="The first point of contact for the users of an analytics tool.",
    instruction="""\
You are the first point of contact for the users of an analytics tool. Pass every query to check_and_transfer first. If
it is not urgent, answer it yourself.
""",
    tools=[check_and_transfer],
)

support_agent = Agent(
    name="support_agent",
    model="gemini-3.5-flash",
    description="Handles urgent problems.",
    instruction="You are the support agent. Say so, and help the user with the urgent problem.",
)

# Set after construction, as in ADK's documentation. The support agent then cannot transfer back; to allow it, write
# Agent(…, sub_agents=[support_agent]).
main_agent.sub_agents = [support_agent]

root_agent = main_agent
