"""Two tools and two queries with the synchronous `run`; the second query refers to the first."""

import asyncio

from google.genai import types

from effects import count
from waystation.agents import Agent
from waystation.runners import Runner
from waystation.sessions import InMemorySessionService
from waystation.tools import FunctionTool

APP_NAME, USER_ID, SESSION_ID = "weather_sentiment_agent", "user1234", "1234"


def get_weather_report(city: str) -> dict:
    """Return the weather report of a city."""
    count("get_weather_report")
    if city.lower() == "london":
        return {"status": "success", "report": "Cloudy with a temperature of 18 degrees Celsius."}
    return {"status": "error", "error_message": f"Weather information for '{city}' is not available."}


def analyze_sentiment(text: str) -> dict:
    """Analyze the sentiment of a text."""
    count("analyze_sentiment")
    sentiment = "positive" if "good" in text.lower() else "negative" if "sad" in text.lower() else "neutral"
    return {"sentiment": sentiment, "confidence": 0.8}


weather_sentiment_agent = Agent(
    model="gemini-3.5-flash",
    name="weather_sentiment_agent",
    instruction="Provide weather reports, and analyze the sentiment of the user's replies.",
    tools=[FunctionTool(func=get_weather_report), FunctionTool(func=analyze_sentiment)],
)

session_service = InMemorySessionService()
session = asyncio.run(session_service.create_session(app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID))
runner = Runner(agent=weather_sentiment_agent, app_name=APP_NAME, session_service=session_service)


def call_agent(query):
    content = types.Content(role="user", parts=[types.Part(text=query)])
    for event in runner.run(user_id=USER_ID, session_id=SESSION_ID, new_message=content):
        if event.is_final_response():
            print("Agent Response: ", event.content.parts[0].text)


call_agent("weather in london?")
call_agent("That makes me sad.")
