# Names outside `__all__` are for the engine.
from waystation.agents.base_agent import BaseAgent
from waystation.agents.base_agent import Callbacks as Callbacks
from waystation.agents.base_agent import as_list as as_list
from waystation.agents.base_agent import lineage as lineage
from waystation.agents.context import Context as Context
from waystation.agents.context_cache_config import ContextCacheConfig as ContextCacheConfig
from waystation.agents.invocation_context import InvocationContext as InvocationContext
from waystation.agents.llm_agent import CALLBACKS as CALLBACKS
from waystation.agents.llm_agent import Agent, LlmAgent
from waystation.agents.loop_agent import LoopAgent
from waystation.agents.parallel_agent import ParallelAgent
from waystation.agents.run_config import RunConfig
from waystation.agents.sequential_agent import SequentialAgent
from waystation.agents.toolbox import NAME as NAME
from waystation.agents.toolbox import RESERVED_NAMES as RESERVED_NAMES
from waystation.agents.toolbox import agents_below as agents_below
from waystation.agents.toolbox import entries_of as entries_of
from waystation.agents.toolbox import resolve_tools as resolve_tools
from waystation.agents.toolbox import tool_problems as tool_problems
from waystation.agents.tree import create_agent_spec as create_agent_spec
from waystation.agents.tree import kind_of as kind_of
from waystation.agents.tree import transfer_target as transfer_target
from waystation.agents.tree import transfer_targets as transfer_targets
from waystation.tools.approval_rule import ApprovalRule
from waystation.tools.base_context import ReadonlyContext as ReadonlyContext

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
