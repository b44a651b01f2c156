"""An agent that calls Gemini."""

from waystation.agents import Agent
from waystation.testing import ScriptedModel

root_agent = Agent(name="speaking", model="gemini-3.5-flash")
# So that workers without a key serve its neighbours; never called.
demo_model = ScriptedModel()
