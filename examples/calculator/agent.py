"""The calculator of ADK's documentation: tools that are given together, under a common prefix."""

import structlog

from waystation.agents import Agent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.tools import BaseTool, FunctionTool, ToolContext
from waystation.tools.base_toolset import BaseToolset

from .demo import demo_model as demo_model

log = structlog.get_logger(__name__)


class CalculatorToolset(BaseToolset):
    """Adds and subtracts, and keeps the last result in the state."""

    def __init__(self, prefix: str) -> None:
        super().__init__(tool_name_prefix=prefix)
        self._tools: list[BaseTool] = [FunctionTool(self.add), FunctionTool(self.subtract)]
        self._calculations = 0

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return the tools under their own names; asked at each model call, so they may follow from the state."""
        return self._tools

    async def close(self) -> None:
        """Release what the toolset holds. Called when the worker stops; here a connection would be closed."""
        log.info("calculator.closed", calculations=self._calculations)

    def add(self, a: float, b: float, tool_context: ToolContext) -> dict[str, float]:
        """Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return self._done(a + b, tool_context)

    def subtract(self, a: float, b: float, tool_context: ToolContext) -> dict[str, float]:
        """Subtract a number from another.

        Args:
            a: The number to subtract from.
            b: The number that is subtracted.
        """
        return self._done(a - b, tool_context)

    def _done(self, result: float, tool_context: ToolContext) -> dict[str, float]:
        self._calculations += 1
        tool_context.state["last_result"] = result
        return {"result": result}


root_agent = Agent(
    name="calculator_agent",
    model="gemini-2.5-flash",
    description="Calculates.",
    instruction="Calculate with the tools that you have, from left to right. Never calculate in your head.",
    tools=[CalculatorToolset(prefix="calculator")],
)
