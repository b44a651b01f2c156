"""A toolset whose tools depend on the state, and which the program closes."""

import asyncio

from google.genai import types

from effects import count
from waystation.agents import Agent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.runners import Runner
from waystation.sessions import InMemorySessionService
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

APP_NAME, USER_ID, SESSION_ID = "calculator_app", "user1", "session1"


def add_numbers(a: int, b: int, tool_context: ToolContext) -> dict:
    """Add two integers."""
    count("add_numbers")
    result = a + b
    tool_context.state["last_math_result"] = result
    return {"status": "success", "result": result}


def subtract_numbers(a: int, b: int) -> dict:
    """Subtract b from a."""
    count("subtract_numbers")
    return {"status": "success", "result": a - b}


class SimpleMathToolset(BaseToolset):
    def __init__(self):
        super().__init__()
        self._add, self._subtract = FunctionTool(func=add_numbers), FunctionTool(func=subtract_numbers)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        if readonly_context and readonly_context.state.get("enable_advanced_math"):
            return [self._add, self._subtract]
        return [self._add]

    async def close(self) -> None:
        print("Toolset: closed.")


math_toolset = SimpleMathToolset()

calculator_agent = Agent(
    name="CalculatorAgent",
    model="gemini-3.5-flash",
    instruction="Use the tools to calculate.",
    tools=[math_toolset],
)


async def main():
    session_service = InMemorySessionService()
    await session_service.create_session(
        app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID, state={"enable_advanced_math": True}
    )
    runner = Runner(agent=calculator_agent, app_name=APP_NAME, session_service=session_service)
    for query in ("What is 5 + 3?", "And 8 - 2?"):
        content = types.Content(role="user", parts=[types.Part(text=query)])
        async for event in runner.run_async(user_id=USER_ID, session_id=SESSION_ID, new_message=content):
            for call in event.get_function_calls():
                print("Call:", call.name, call.args)
            for response in event.get_function_responses():
                print("Response:", response.response)
            if event.is_final_response():
                print("Agent Response:", event.content.parts[0].text)
    await math_toolset.close()


asyncio.run(main())
