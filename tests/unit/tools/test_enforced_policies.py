"""Where a policy asks, the tool does not run before an answer, whatever its class. Otherwise, it does not load."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.types import Tool
from pydantic import BaseModel

from tests.unit.tools.rest_service import spec
from tests.unit.tools.rest_service import tool as rest_tool
from waystation.agents import ApprovalRule, LlmAgent, ReadonlyContext
from waystation.agents.registry import authoring_problems
from waystation.core import ApprovalPolicy, InvalidTool, JsonObject
from waystation.tools import (
    ActivityTool,
    AgentTool,
    BaseTool,
    BaseToolset,
    CrewaiTool,
    FunctionTool,
    GoogleSearchTool,
    LangchainTool,
    LongRunningFunctionTool,
    NativeTool,
    NexusTool,
    RequestInputTool,
    ToolContext,
    WorkflowTool,
    exit_loop,
    judge_call,
)
from waystation.tools.authenticated_function_tool import AuthenticatedFunctionTool
from waystation.tools.load_artifacts_tool import LoadArtifactsTool
from waystation.tools.load_memory_tool import LoadMemoryTool
from waystation.tools.mcp_tool.mcp_tool import McpTool
from waystation.tools.openapi_tool import RestApiTool
from waystation.tools.preload_memory_tool import PreloadMemoryTool
from waystation.tools.toolbox import list_tools

POLICY = ApprovalPolicy(approvers=("role:finance",))


class Pay(BaseModel):
    amount: int = 1


def pay(amount: int = 1) -> str:
    """Pay."""
    return "paid"


class Own(BaseTool):
    def _get_declaration(self) -> JsonObject:
        return {"name": self.name, "description": "", "parametersJsonSchema": {"type": "object"}}


UNUSED: Any = None
FOREIGN = SimpleNamespace(name="pay", description="", args_schema=Pay, run=pay)
KINDS: dict[type[BaseTool], Callable[[], BaseTool]] = {
    Own: lambda: Own(name="pay", description=""),
    FunctionTool: lambda: FunctionTool(pay),
    LongRunningFunctionTool: lambda: LongRunningFunctionTool(pay),
    RequestInputTool: RequestInputTool,
    AuthenticatedFunctionTool: lambda: AuthenticatedFunctionTool(pay),
    ActivityTool: lambda: ActivityTool("pay", schema=Pay),
    WorkflowTool: lambda: WorkflowTool("pay", schema=Pay),
    NexusTool: lambda: NexusTool("pay", endpoint="e", service="s", schema=Pay),
    LangchainTool: lambda: LangchainTool(FOREIGN),
    CrewaiTool: lambda: CrewaiTool(FOREIGN, name="pay"),
    McpTool: lambda: McpTool(
        mcp_tool=Tool(name="pay", input_schema={"type": "object"}), sessions=UNUSED, headers_for=UNUSED
    ),
    RestApiTool: lambda: rest_tool(spec("https://pets.example.com")),
    LoadArtifactsTool: LoadArtifactsTool,
    LoadMemoryTool: LoadMemoryTool,
    AgentTool: lambda: AgentTool(LlmAgent(name="clerk", model="gemini-3.5-flash")),
    NativeTool: GoogleSearchTool,
    PreloadMemoryTool: PreloadMemoryTool,
}
REFUSED = {AgentTool, NativeTool, PreloadMemoryTool}
"""The classes whose calls cannot wait for an approval."""
OTHERS = {
    *("AdkAgentTool", "AdkRequestTool", "AdkTool", "RunCodeTool", "SetModelResponseTool", "TransferToAgentTool"),
    *("BaseAuthenticatedTool", "FrameworkTool", "TemporalTool", "_LangchainRun"),
}
"""The tools on which no author sets a policy or that the tests with google-adk cover, and base classes."""


class Listed(BaseToolset):
    def __init__(self, tool: BaseTool, **settings: Any) -> None:
        super().__init__(**settings)
        self.tools = [tool]

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        return self.tools


def classes(above: type[BaseTool]) -> Iterator[type[BaseTool]]:
    for cls in above.__subclasses__():
        if cls.__module__.startswith("waystation."):
            yield cls
            yield from classes(cls)


def test_every_class_of_tools_is_known_here() -> None:
    """A new class of tools must either ask or refuse policies, which the next test shows."""
    unknown = {cls.__name__ for cls in classes(BaseTool) if not issubclass(cls, NativeTool)} - OTHERS
    assert unknown <= {kind.__name__ for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("rule", [False, True, lambda: True, lambda: False], ids=["none", "all", "yes", "no"])
@pytest.mark.parametrize("place", ["declared", "listed", "prefixed"])
async def test_a_policy_asks_or_the_tool_does_not_load(kind: type[BaseTool], rule: Any, place: str) -> None:
    """A policy alone asks at each call, and a rule beside it decides, for declared tools and those of toolsets."""
    tool = KINDS[kind]()
    tool.approval, tool.require_confirmation = POLICY, rule
    toolset = Listed(tool, tool_name_prefix="p" if place == "prefixed" else None)
    agent = LlmAgent(name="a", model="gemini-3.5-flash", tools=[tool if place == "declared" else toolset])
    problems = authoring_problems(agent)
    if kind in REFUSED and place == "declared":
        assert "would have no effect" in str(problems[0])
        return
    assert not problems
    for found in (await list_tools(agent, ReadonlyContext)).values():
        judgement = await judge_call(found, {"message": "m", "name": "n", "query": "q"}, ToolContext())
        assert judgement.policy == POLICY
        asks = not tool.is_long_running and (rule() if callable(rule) else True)
        assert (judgement.confirmation is not None) == asks or tool.is_long_running
        assert kind not in REFUSED


def test_policies_without_effect_are_mistakes() -> None:
    """Those of a toolset, of a function that is given without a tool, and of a rule for a tool that rules exempt."""

    def refund() -> None: ...

    refund.approval = POLICY  # type: ignore[attr-defined]
    toolset = Listed(FunctionTool(pay))
    toolset.approval = POLICY  # type: ignore[attr-defined]
    agent = LlmAgent(name="a", model="gemini-3.5-flash", tools=[refund, toolset])
    problems = authoring_problems(agent)
    assert [type(problem) for problem in problems] == [InvalidTool, InvalidTool]
    assert "`approval`" in str(problems[0])
    assert "ApprovalRule" in str(problems[1])
    looping = LlmAgent(name="a", model="gemini-3.5-flash", tools=[exit_loop, pay])
    rule = ApprovalRule(POLICY, tools="exit_loop")
    assert "match no tool" in str(authoring_problems(looping, [rule])[0])
