"""The summariser of ADK's documentation: an agent that another agent uses as a tool, whose answer stands."""

from waystation.agents import Agent
from waystation.tools import AgentTool

from .demo import demo_model as demo_model

summary_agent = Agent(
    name="summary_agent",
    model="gemini-2.5-flash",
    description="Summarises the text in its request.",
    instruction="Summarise the text that you are given in at most two sentences. Add nothing that is not in it.",
)

root_agent = Agent(
    name="summarizer_agent",
    model="gemini-2.5-flash",
    description="Helps with texts.",
    instruction="""\
You help the user with texts. To summarise one, call summary_agent with the whole text as its request, word for word.
Answer anything else yourself.
""",
    # Without skip_summarization this agent's model would be called again, to say the same in its own words.
    tools=[AgentTool(agent=summary_agent, skip_summarization=True)],
)
