"""The program itself changes the session's state with an event, before and between messages."""

import asyncio

from google.genai import types

from effects import count
from waystation.agents import Agent
from waystation.events import Event, EventActions
from waystation.runners import Runner
from waystation.sessions import InMemorySessionService
from waystation.tools.tool_context import ToolContext

APP_NAME, USER_ID, SESSION_ID = "login_app", "user1", "session1"


def count_visit(tool_context: ToolContext) -> dict:
    """Count a visit of the user."""
    count("count_visit")
    tool_context.state["visits"] = tool_context.state["visits"] + 1
    return {"visits": tool_context.state["visits"], "status": tool_context.state["login_status"]}


root_agent = Agent(
    name="greeter", model="gemini-3.5-flash", instruction="Greet the user, who is {login_status}.", tools=[count_visit]
)
session_service = InMemorySessionService()
runner = Runner(agent=root_agent, app_name=APP_NAME, session_service=session_service)


async def set_state(session, **changes):
    actions = EventActions(state_delta={**changes, "temp:validated": True})
    await session_service.append_event(session, Event(invocation_id="login", author="system", actions=actions))
    print("Login:", (await get_state())["login_status"])


async def get_state():
    session = await session_service.get_session(app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID)
    return session.state


async def ask(query):
    content = types.Content(role="user", parts=[types.Part(text=query)])
    async for event in runner.run_async(user_id=USER_ID, session_id=SESSION_ID, new_message=content):
        for response in event.get_function_responses():
            print("Response:", response.response)
        if event.is_final_response():
            print("Agent:", event.content.parts[0].text)


async def main():
    session = await session_service.create_session(app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID)
    await set_state(session, visits=0, login_status="active")
    await ask("Hello.")
    await set_state(session, login_status="gone")
    await ask("Bye.")
    print("State:", sorted((await get_state()).items()))


asyncio.run(main())
