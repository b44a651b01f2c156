"""The weather agent of ADK's documentation: two function tools, called one after the other."""

from waystation.agents import Agent

from .demo import demo_model as demo_model

REPORTS = {
    "london": "The weather in London is cloudy, 18 degrees Celsius, with a chance of rain.",
    "paris": "The weather in Paris is sunny, 25 degrees Celsius.",
}
"""Invented weather."""

POSITIVE = frozenset({"good", "great", "happy", "like", "love", "nice", "sunny"})
NEGATIVE = frozenset({"awful", "bad", "dislike", "gloomy", "hate", "rain", "sad"})


def get_weather_report(city: str) -> dict[str, str]:
    """Return the current weather report for a city.

    Args:
        city: Name of the city, such as London.

    Returns:
        `status` is `success`, with the report, or `error`, with an error message.
    """
    report = REPORTS.get(city.strip().lower())
    if report is None:
        return {"status": "error", "error_message": f"There is no weather report for {city!r}."}
    return {"status": "success", "report": report}


async def analyze_sentiment(text: str) -> dict[str, str | float]:
    """Classify a text as positive, negative or neutral.

    Args:
        text: The text to classify.
    """
    words = {word.strip(".,!?").lower() for word in text.split()}
    score = len(words & POSITIVE) - len(words & NEGATIVE)
    if score == 0:
        return {"sentiment": "neutral", "confidence": 0.6}
    return {"sentiment": "positive" if score > 0 else "negative", "confidence": 0.8}


root_agent = Agent(
    name="weather_sentiment_agent",
    model="gemini-3.5-flash",
    description="Reports the weather, and responds to how users feel about it.",
    instruction="""\
You report the weather.

Get the report of the city that the user names with get_weather_report. If its status is `success`, pass the report on;
if it is `error`, say so and offer another city.
When the user also says how the weather makes them feel, use analyze_sentiment on those words afterwards, and answer the
feeling in one sentence. Call one tool at a time.
""",
    tools=[get_weather_report, analyze_sentiment],
)
