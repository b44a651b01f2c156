"""The deterministic side: workflows that interpret recorded data without user code, model SDKs, clocks or I/O."""

from waystation.workflows.agent_call import run_agent as run_agent
