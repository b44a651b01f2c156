"""Set approval policies on tools of google-adk, and print which calls would wait for an approver as JSON.

Runs in the environment that has google-adk and Waystation.
"""

# mypy: ignore-errors
# Type checkers do not know the names that come from google-adk.

import asyncio
import json
import sys
from typing import Any

from google.adk import Agent
from google.adk.tools import AgentTool, FunctionTool, LongRunningFunctionTool, google_search
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.genai import types

from waystation import ApprovalPolicy, ToolContext
from waystation.adk import from_adk
from waystation.agents.toolbox import list_tools
from waystation.apps.registry import authoring_problems
from waystation.tools.approval import find_required_approval
from waystation.tools.session_view import Session

POLICY = ApprovalPolicy(approvers=("role:finance",))


def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def paid(amount: int) -> Any:
    """Pay."""
    yield "paid"


def is_large(amount: int) -> bool:
    return amount > 100


class Own(BaseTool):
    def __init__(self) -> None:
        super().__init__(name="pay", description="Pay.")

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(name="pay", description="Pay.")


class Choosy(Own):
    async def check_require_confirmation(self, args: Any, tool_context: Any) -> bool:
        return is_large(**args)


class ByClass(Own):
    approval = POLICY


class Listed(BaseToolset):
    def __init__(self, tool: Any, prefix: str | None = None) -> None:
        super().__init__(tool_name_prefix=prefix)
        self.tool = tool

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        return [self.tool]


def having(tool: Any, **settings: Any) -> Any:
    vars(tool).update({"approval": POLICY, **settings})
    return tool


CASES = {
    "alone": lambda: having(FunctionTool(pay)),
    "generator": lambda: having(FunctionTool(paid)),
    "always": lambda: having(FunctionTool(pay, require_confirmation=True)),
    "rule": lambda: having(FunctionTool(pay, require_confirmation=is_large)),
    "rule as an attribute": lambda: having(FunctionTool(pay), require_confirmation=is_large),
    "own class": lambda: having(Own()),
    "own class with a rule": lambda: having(Choosy()),
    "of the class": ByClass,
    "toolset": lambda: Listed(having(FunctionTool(pay))),
    "toolset with prefix": lambda: Listed(having(FunctionTool(pay, require_confirmation=is_large)), "bank"),
    "long-running": lambda: having(LongRunningFunctionTool(pay)),
    "agent": lambda: having(AgentTool(Agent(name="clerk", model="gemini-3.5-flash"))),
    "of the provider": lambda: having(type(google_search)()),
    "policy of a toolset": lambda: having(Listed(FunctionTool(pay))),
    "policy of a function": lambda: having(lambda amount: "paid"),
}


async def judged(tool: Any) -> Any:
    """Return whether calls with the amounts 1 and 1000 wait, and the tool's origin, or else the problem."""
    agent = from_adk(Agent(name="payer", model="gemini-3.5-flash", tools=[tool]))
    if problems := authoring_problems(agent):
        return [str(problem) for problem in problems][-1]
    context = ToolContext(session=Session(id="s1"))
    tools = await list_tools(agent, lambda: context)
    ((name, found),) = tools.items()
    answers = [await find_required_approval(found, {"amount": amount}, context) for amount in (1, 1000)]
    assert all(answer.policy == POLICY for answer in answers)
    return [[answer.confirmation is not None for answer in answers], tools.origins[name]]


async def main() -> None:
    found = {name: await judged(create()) for name, create in CASES.items()}
    sys.stdout.write(json.dumps(found) + "\n")


asyncio.run(main())
