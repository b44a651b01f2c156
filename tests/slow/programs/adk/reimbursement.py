"""A person approves a call: the program sends the response to a long-running call in a message of its own."""

import asyncio

from google.genai import types

from effects import count
from waystation.agents import Agent
from waystation.runners import Runner
from waystation.sessions import InMemorySessionService
from waystation.tools.long_running_tool import LongRunningFunctionTool

APP_NAME, USER_ID, SESSION_ID = "human_in_the_loop", "1234", "session1234"


def ask_for_approval(purpose: str, amount: float) -> dict:
    """Ask a manager to approve a reimbursement."""
    count("ask_for_approval")
    return {"status": "pending", "approver": "Sean Zhou", "purpose": purpose, "amount": amount, "ticket-id": "t-1"}


def reimburse(purpose: str, amount: float) -> dict:
    """Reimburse the employee."""
    count("reimburse")
    return {"status": "ok"}


file_agent = Agent(
    model="gemini-3.5-flash",
    name="reimbursement_agent",
    instruction="Reimburse amounts under 100 dollars. Ask for approval of all others, and reimburse if approved.",
    tools=[reimburse, LongRunningFunctionTool(func=ask_for_approval)],
)

session_service = InMemorySessionService()
runner = Runner(agent=file_agent, app_name=APP_NAME, session_service=session_service)


def find_long_running_call(event):
    if not event or not event.content or not event.content.parts:
        return None
    for part in event.content.parts:
        if part and part.function_call and part.function_call.id in (event.long_running_tool_ids or ()):
            return part.function_call
    return None


def find_response(event, call_id):
    if not event or not event.content or not event.content.parts:
        return None
    for part in event.content.parts:
        if part and part.function_response and part.function_response.id == call_id:
            return part.function_response
    return None


def show(event):
    parts = (event.content and event.content.parts) or []
    if text := "".join(part.text or "" for part in parts):
        print(f"[{event.author}]: {text}")


async def call_agent(query):
    content = types.Content(role="user", parts=[types.Part(text=query)])
    call, response = None, None
    async for event in runner.run_async(user_id=USER_ID, session_id=SESSION_ID, new_message=content):
        if not call:
            call = find_long_running_call(event)
        elif found := find_response(event, call.id):
            response = found
            print("ticket:", response.response.get("ticket-id"), response.response.get("approver"))
        show(event)
    if response:
        updated = response.model_copy(deep=True)
        updated.response = {"status": "approved"}
        answer = types.Content(parts=[types.Part(function_response=updated)], role="user")
        async for event in runner.run_async(user_id=USER_ID, session_id=SESSION_ID, new_message=answer):
            show(event)


async def main():
    await session_service.create_session(app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID)
    await call_agent("Please reimburse 50$ for meals")
    await call_agent("Please reimburse 200$ for conference travel")


asyncio.run(main())
