"""A tool transfers the conversation to another agent."""

import asyncio

from google.genai import types

from effects import count
from waystation.agents import Agent
from waystation.runners import Runner
from waystation.sessions import InMemorySessionService
from waystation.tools import FunctionTool, ToolContext

APP_NAME, USER_ID, SESSION_ID = "customer_support_agent", "user1234", "1234"


def check_and_transfer(query: str, tool_context: ToolContext) -> str:
    """Transfer the user to another agent if the query requires it."""
    count("check_and_transfer")
    if "urgent" in query.lower():
        print("Tool: The query is urgent.")
        tool_context.actions.transfer_to_agent = "support_agent"
        return "Transferring to the support agent..."
    return f"Processed query: '{query}'. No further action needed."


escalation_tool = FunctionTool(func=check_and_transfer)

main_agent = Agent(
    model="gemini-3.5-flash",
    name="main_agent",
    instruction="You are the first contact of customer support. Use the tool for every query.",
    tools=[escalation_tool],
)

support_agent = Agent(
    model="gemini-3.5-flash",
    name="support_agent",
    instruction="You are the dedicated support agent. Help with the urgent issue.",
)

main_agent.sub_agents = [support_agent]


async def main():
    session_service = InMemorySessionService()
    await session_service.create_session(app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID)
    runner = Runner(agent=main_agent, app_name=APP_NAME, session_service=session_service)
    content = types.Content(role="user", parts=[types.Part(text="this is urgent, i cant login")])
    async for event in runner.run_async(user_id=USER_ID, session_id=SESSION_ID, new_message=content):
        print(event.author, event.actions.transfer_to_agent, event.is_final_response())
        if event.is_final_response():
            print("Agent Response: ", event.content.parts[0].text)


asyncio.run(main())
