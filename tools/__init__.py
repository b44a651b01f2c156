"""What an agent can do: tools, the context they are given, and what becomes of what they return.

For authors and for activities; workflows never import this.
"""

from tools.agent_tool import AgentTool
from tools.authoring import agents_below, authoring_problems, tools_of
from tools.base import BaseTool
from tools.context import Actions, CallbackContext, Context, ToolContext
from tools.declaration import declare
from tools.function_tool import ArgumentsRefused, FunctionTool
from tools.long_running import LongRunningFunctionTool
from tools.outcome import TooLarge, describe, failure_of, outcome_of
from tools.state import State, StateRefused

__all__ = [
    "Actions",
    "AgentTool",
    "ArgumentsRefused",
    "BaseTool",
    "CallbackContext",
    "Context",
    "FunctionTool",
    "LongRunningFunctionTool",
    "State",
    "StateRefused",
    "TooLarge",
    "ToolContext",
    "agents_below",
    "authoring_problems",
    "declare",
    "describe",
    "failure_of",
    "outcome_of",
    "tools_of",
]
