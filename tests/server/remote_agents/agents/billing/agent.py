"""A remote agent as the root agent, for worker processes that are killed."""

import os
from datetime import timedelta

from waystation.agents.remote_a2a_agent import RemoteA2aAgent

root_agent = RemoteA2aAgent("billing", os.environ["REMOTE_AGENT_URL"], poll_interval=timedelta(seconds=0.05))
for tool in root_agent.tools:
    tool.heartbeat_timeout = timedelta(seconds=2)
