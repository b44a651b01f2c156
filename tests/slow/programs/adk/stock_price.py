"""One function tool; the final text is printed."""

import asyncio

from google.genai import types

from effects import count
from waystation.agents import Agent
from waystation.runners import Runner
from waystation.sessions import InMemorySessionService

APP_NAME, USER_ID, SESSION_ID = "stock_app", "1234", "session1234"
PRICES = {"GOOG": 190.5}


def get_stock_price(symbol: str) -> dict:
    """Return the current price of a stock.

    Args:
        symbol: The stock symbol, such as GOOG.
    """
    count("get_stock_price")
    if symbol not in PRICES:
        return {"error": f"No data for {symbol}"}
    return {"symbol": symbol, "price": PRICES[symbol]}


root_agent = Agent(
    model="gemini-3.5-flash",
    name="stock_agent",
    instruction="You retrieve stock prices. If a ticker symbol is given, fetch the current price.",
    description="Retrieves real-time stock prices.",
    tools=[get_stock_price],
)


async def setup_session_and_runner():
    session_service = InMemorySessionService()
    session = await session_service.create_session(app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID)
    runner = Runner(agent=root_agent, app_name=APP_NAME, session_service=session_service)
    return session, runner


async def call_agent_async(query):
    content = types.Content(role="user", parts=[types.Part(text=query)])
    session, runner = await setup_session_and_runner()
    events = runner.run_async(user_id=USER_ID, session_id=session.id, new_message=content)
    async for event in events:
        if event.is_final_response():
            print("Agent Response: ", event.content.parts[0].text)


asyncio.run(call_agent_async("stock price of GOOG"))
