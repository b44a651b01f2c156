"""What authors declare: agents."""

from waystation.agents.approval_rule import ApprovalRule
from waystation.agents.base_agent import BaseAgent
from waystation.agents.llm_agent import Agent, LlmAgent
from waystation.agents.loop_agent import LoopAgent
from waystation.agents.parallel_agent import ParallelAgent
from waystation.agents.run_config import RunConfig
from waystation.agents.sequential_agent import SequentialAgent

__all__ = [
    "Agent",
    "ApprovalRule",
    "BaseAgent",
    "LlmAgent",
    "LoopAgent",
    "ParallelAgent",
    "RunConfig",
    "SequentialAgent",
]
