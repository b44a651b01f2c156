"""The agent of `agents/bench` with one tool and a Gemini model, which google-genai calls over HTTP."""

from benchmarks.side import SYSTEM
from waystation import Agent


async def lookup(size: int) -> str:
    """Return `size` bytes."""
    return "r" * size


root_agent = Agent(name="bench", model="gemini-2.5-flash", instruction=SYSTEM, tools=[lookup])
