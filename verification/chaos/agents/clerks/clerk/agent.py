"""An agent that not every worker serves."""

from verification.chaos.chaos_agents import chaotic_agent

root_agent = chaotic_agent("clerk")
