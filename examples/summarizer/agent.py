"""The summarizer of ADK's documentation: an agent used as a tool, whose answer is final."""

from waystation.agents import Agent
from waystation.tools import AgentTool

from .demo import demo_model as demo_model

summary_agent = Agent(
    name="summary_agent",
    model="gemini-3.5-flash",
    description="Summarizes the text in its request.",
    instruction="Summarize the given text in at most two sentences. Add nothing that is not in it.",
)

root_agent = Agent(
    name="summarizer_agent",
    model="gemini-3.5-flash",
    description="Helps with texts.",
    instruction="""\
You help the user with texts. To summarize one, call summary_agent with the whole text as its request, word for word.
Answer anything else yourself.
""",
    # Without skip_summarization this agent's model would be called again to rephrase the summary.
    tools=[AgentTool(agent=summary_agent, skip_summarization=True)],
)
