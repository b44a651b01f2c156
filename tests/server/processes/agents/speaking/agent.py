"""An agent that calls Gemini."""

from waystation.agents import Agent
from waystation.testing import ScriptedModel

root_agent = Agent(name="speaking", model="gemini-3.5-flash")
# Never called. It lets workers without a key serve the other agents.
demo_model = ScriptedModel()
