"""A tool changes the user's state, and a later session sees it."""

import asyncio
import json

from google.genai import types

from effects import count
from waystation.agents import Agent
from waystation.runners import Runner
from waystation.sessions import InMemorySessionService
from waystation.tools import FunctionTool, ToolContext

APP_NAME, USER_ID = "user_preference_agent", "user1234"
KEY = "user:preferences"


def update_user_preference(preference: str, value: str, tool_context: ToolContext):
    """Update a user's preference."""
    count("update_user_preference")
    preferences = tool_context.state.get(KEY, {})
    preferences[preference] = value
    tool_context.state[KEY] = preferences
    print(f"Tool: Updated user preference '{preference}' to '{value}' ({len(preferences)} in total)")
    return {"status": "success", "updated_preference": preference}


root_agent = Agent(
    model="gemini-3.5-flash",
    name="preference_agent",
    instruction="Store the user's preferences.",
    tools=[FunctionTool(func=update_user_preference)],
    output_key="last_reply",
)


async def main():
    session_service = InMemorySessionService()
    runner = Runner(agent=root_agent, app_name=APP_NAME, session_service=session_service)
    for session_id, query in (("first", "I like dark themes"), ("second", "Call me Sam")):
        session = await session_service.create_session(
            app_name=APP_NAME, user_id=USER_ID, session_id=session_id, state={"query": query}
        )
        content = types.Content(role="user", parts=[types.Part(text=query)])
        async for event in runner.run_async(user_id=USER_ID, session_id=session.id, new_message=content):
            if event.actions.state_delta:
                print("Delta:", sorted(event.actions.state_delta))
            if event.is_final_response():
                print("Agent Response:", event.content.parts[0].text)
        session = await session_service.get_session(app_name=APP_NAME, user_id=USER_ID, session_id=session_id)
        print("State:", json.dumps(session.state, sort_keys=True))
        print("Events:", [event.author for event in session.events])
    user_state = await session_service.get_user_state(app_name=APP_NAME, user_id=USER_ID)
    print("User state:", json.dumps(user_state, sort_keys=True))


asyncio.run(main())
