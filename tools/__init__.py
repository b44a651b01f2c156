"""What an agent can do: tools, the context they are given, and what becomes of what they return.

For authors and for activities; workflows never import this.
"""

from tools.actions import Actions
from tools.agent_tool import AgentTool
from tools.authoring import agents_below, authoring_problems, tools_of, toolsets_of
from tools.base import BaseTool
from tools.context import CallbackContext, Context, ToolContext
from tools.declaration import declare
from tools.function_tool import ArgumentsRefused, FunctionTool
from tools.long_running import LongRunningFunctionTool
from tools.outcome import TooLarge, describe, failure_of, outcome_of
from tools.readonly_context import ReadonlyContext
from tools.services import NO_SERVICES, Services
from tools.session import Session
from tools.state import State, StateRefused
from tools.toolbox import close_toolsets, toolbox
from tools.toolset import BaseToolset, ToolPredicate

__all__ = [
    "NO_SERVICES",
    "Actions",
    "AgentTool",
    "ArgumentsRefused",
    "BaseTool",
    "BaseToolset",
    "CallbackContext",
    "Context",
    "FunctionTool",
    "LongRunningFunctionTool",
    "ReadonlyContext",
    "Services",
    "Session",
    "State",
    "StateRefused",
    "TooLarge",
    "ToolContext",
    "ToolPredicate",
    "agents_below",
    "authoring_problems",
    "close_toolsets",
    "declare",
    "describe",
    "failure_of",
    "outcome_of",
    "toolbox",
    "tools_of",
    "toolsets_of",
]
