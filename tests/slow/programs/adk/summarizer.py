"""An agent that is called as a tool, whose text is the final response."""

import asyncio

from google.genai import types

from waystation.agents import Agent
from waystation.runners import Runner
from waystation.sessions import InMemorySessionService
from waystation.tools.agent_tool import AgentTool

APP_NAME, USER_ID, SESSION_ID = "summary_agent", "user1234", "1234"

summary_agent = Agent(
    model="gemini-3.5-flash",
    name="summary_agent",
    instruction="Read the text and write a summary of it in one sentence.",
    description="Agent to summarize text",
)

root_agent = Agent(
    model="gemini-3.5-flash",
    name="root_agent",
    instruction="Help the user. Pass long texts to the tool `summary_agent`, and return its result.",
    tools=[AgentTool(agent=summary_agent, skip_summarization=True)],
)


async def call_agent_async(query):
    session_service = InMemorySessionService()
    await session_service.create_session(app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID)
    runner = Runner(agent=root_agent, app_name=APP_NAME, session_service=session_service)
    content = types.Content(role="user", parts=[types.Part(text=query)])
    async for event in runner.run_async(user_id=USER_ID, session_id=SESSION_ID, new_message=content):
        if event.is_final_response():
            for part in event.content.parts:
                if part.text:
                    print("Agent Response:", part.text)
                if part.function_response:
                    print("Function response:", part.function_response.name, part.function_response.response)


asyncio.run(call_agent_async("Quantum computing is fundamentally different. " * 20))
