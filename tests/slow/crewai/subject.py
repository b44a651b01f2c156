"""Wrap real CrewAI tools, and print as JSON what becomes of them. Runs in the environment that has crewai."""

# Where types are checked, crewai is not installed.
# mypy: disable-error-code="misc, untyped-decorator"

import asyncio
import json
from typing import Any

from crewai.tools import BaseTool, tool
from pydantic import BaseModel, Field

from waystation.tools.base_tool import declare
from waystation.tools.crewai_tool import CrewaiTool
from waystation.tools.outcome import create_outcome
from waystation.tools.tool_context import ToolContext


class Wanted(BaseModel):
    city: str = Field(description="Where.")
    days: int = 1


class Forecast(BaseTool):
    name: str = "Weather Forecast"
    description: str = "Tell the weather."
    args_schema: type[BaseModel] = Wanted

    def _run(self, city: str, days: int = 1) -> str:
        return f"{city}: sun for {days} days"


@tool("Read Page")
def read_page(url: str) -> dict[str, str]:
    """Read a page."""
    return {"text": f"page of {url}"}


@tool("Fail")
def fail() -> str:
    """Fail."""
    raise LookupError("nothing there")


@tool("Read Slowly")
async def read_slowly(url: str) -> str:
    """Read a page, slowly."""
    await asyncio.sleep(0)
    return url


async def answer(wrapped: CrewaiTool, args: dict[str, Any]) -> Any:
    value = await wrapped.run_async(args=args, tool_context=ToolContext())
    return create_outcome(value, context=ToolContext(function_call_id="fc-1")).response


async def raised(wrapped: CrewaiTool) -> str:
    try:
        await wrapped.run_async(args={}, tool_context=ToolContext())
    except Exception as error:  # noqa: BLE001  # which one is the question
        return f"{type(error).__name__}: {error}"
    return "nothing"


async def everything() -> dict[str, Any]:
    forecast = CrewaiTool(Forecast(), name="")
    return {
        "declared": declare(forecast),
        "renamed": declare(CrewaiTool(read_page, name="fetch", description="Fetch a page.")),
        "ran": await answer(forecast, {"city": "Bern", "days": "3", "unknown": 1}),
        "defaults": await answer(forecast, {"city": "Bern"}),
        "dictionary": await answer(CrewaiTool(read_page, name=""), {"url": "x"}),
        "asynchronous": await answer(CrewaiTool(read_slowly, name=""), {"url": "y"}),
        "missing": await answer(forecast, {}),
        "wrong": await answer(forecast, {"city": "Bern", "days": "soon"}),
        "raised": await raised(CrewaiTool(fail, name="")),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(everything())))  # noqa: T201  # the answer
