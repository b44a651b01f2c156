"""The calculator of ADK's documentation: a toolset with a common prefix."""

import structlog

from waystation.agents import Agent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.tools import BaseTool, FunctionTool, ToolContext
from waystation.tools.base_toolset import BaseToolset

from .demo import demo_model as demo_model

log = structlog.get_logger(__name__)


class CalculatorToolset(BaseToolset):
    """Add and subtract, and keep the last result in the state."""

    def __init__(self, prefix: str) -> None:
        super().__init__(tool_name_prefix=prefix)
        self._tools: list[BaseTool] = [FunctionTool(self.add), FunctionTool(self.subtract)]
        self._calculations = 0

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return the tools without the prefix. Called at each model call, so the list may depend on the state."""
        return self._tools

    async def close(self) -> None:
        """Release resources, such as connections, when the worker stops."""
        log.info("calculator.closed", calculations=self._calculations)

    def add(self, a: float, b: float, tool_context: ToolContext) -> dict[str, float]:
        """Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return self._record(a + b, tool_context)

    def subtract(self, a: float, b: float, tool_context: ToolContext) -> dict[str, float]:
        """Subtract a number from another.

        Args:
            a: The number to subtract from.
            b: The number to subtract.
        """
        return self._record(a - b, tool_context)

    def _record(self, result: float, tool_context: ToolContext) -> dict[str, float]:
        self._calculations += 1
        tool_context.state["last_result"] = result
        return {"result": result}


root_agent = Agent(
    name="calculator_agent",
    model="gemini-3.5-flash",
    description="Calculates.",
    instruction="Calculate with your tools, from left to right. Never calculate without them.",
    tools=[CalculatorToolset(prefix="calculator")],
)
