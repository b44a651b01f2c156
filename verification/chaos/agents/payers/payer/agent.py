"""An agent that only some workers serve."""

from verification.chaos.chaos_agents import chaotic_agent

root_agent = chaotic_agent("payer")
