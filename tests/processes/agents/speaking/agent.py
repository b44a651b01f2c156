"""An agent that asks Gemini."""

from waystation.agents import Agent

root_agent = Agent(name="speaking", model="gemini-2.5-flash")
