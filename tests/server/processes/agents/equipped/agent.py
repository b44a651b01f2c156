"""An agent whose tools come from a toolset that records its closing."""

from tests.server.processes.ledger import ledger
from waystation.agents import Agent
from waystation.agents.readonly_context import ReadonlyContext
from waystation.testing.models import FunctionModel, calls, responses, says
from waystation.tools.base_tool import BaseTool
from waystation.tools.base_toolset import BaseToolset
from waystation.tools.function_tool import FunctionTool


def measure() -> int:
    """Measure something."""
    return 7


class Instruments(BaseToolset):
    """Holds something that must be released."""

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        return [FunctionTool(measure)]

    async def close(self) -> None:
        ledger().note("closed")


root_agent = Agent(
    name="equipped",
    model=FunctionModel(lambda request: says("done") if responses(request) else calls(("measure", {}))),
    tools=[Instruments()],
)
