"""Tests of `CrewaiTool` with fakes of the parts of CrewAI that it uses.

The package requires older dependencies. Where CrewAI is installed, the same tests use its own classes; CONTRIBUTING.md
has the command.
"""

# CrewAI is not installed where types are checked.
# mypy: disable-error-code="misc, no-redef, override"

import asyncio
import inspect
from typing import Any

import pytest
from pydantic import BaseModel, Field

from waystation.core.payload import JsonObject
from waystation.tools.base_tool import declare
from waystation.tools.crewai_tool import CrewaiTool
from waystation.tools.outcome import create_outcome
from waystation.tools.tool_context import ToolContext

try:
    from crewai.tools import BaseTool
except ImportError:

    class BaseTool(BaseModel):
        """Has the attributes of CrewAI's class, and its `run`, which runs coroutines to their end."""

        name: str
        description: str
        args_schema: type[BaseModel]

        def run(self, **arguments: Any) -> Any:
            result = self._run(**self.args_schema(**arguments).model_dump())
            return asyncio.run(result) if inspect.iscoroutine(result) else result

        def _run(self, **arguments: Any) -> Any: ...


class Wanted(BaseModel):
    city: str = Field(description="Where.")
    days: int = 1


class Forecast(BaseTool):
    name: str = "Weather Forecast"
    description: str = "Tell the weather."
    args_schema: type[BaseModel] = Wanted

    def _run(self, city: str, days: int = 1) -> Any:
        return f"{city}: sun for {days} days"


class SlowForecast(Forecast):
    async def _run(self, city: str, days: int = 1) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"text": f"{city}: rain"}


@pytest.mark.parametrize(
    ("options", "name", "description"),
    [
        ({"name": ""}, "weather_forecast", "Tell the weather."),
        ({"name": "fetch", "description": "Fetch it."}, "fetch", "Fetch it."),
    ],
    ids=["of the tool", "of the agent"],
)
def test_a_tool_is_declared_by_its_own_schema(options: dict[str, str], name: str, description: str) -> None:
    """Spaces in the name become underscores, as in ADK."""
    declared = declare(CrewaiTool(Forecast(), **options)) or {}
    assert description in declared["description"]
    assert (declared["name"], declared["parametersJsonSchema"]) == (
        name,
        {
            "type": "object",
            "properties": {
                "city": {"title": "City", "type": "string", "description": "Where."},
                "days": {"title": "Days", "type": "integer", "default": 1},
            },
            "required": ["city"],
        },
    )


@pytest.mark.parametrize(
    ("tool", "args", "response"),
    [
        (Forecast(), {"city": "Bern", "days": "3", "unknown": 1}, "{'result': 'Bern: sun for 3 days'}"),
        (Forecast(), {"city": "Bern"}, "{'result': 'Bern: sun for 1 days'}"),
        (SlowForecast(), {"city": "Bern"}, "{'text': 'Bern: rain'}"),
        (Forecast(), {}, r"mandatory input parameters are not present:\ncity\n"),
        (Forecast(), {"city": "Bern", "days": "soon"}, "Parameter 'days': expected type 'int', validation error"),
    ],
    ids=["coerced", "defaults", "coroutine", "missing", "wrong"],
)
async def test_a_tool_runs_with_the_arguments_of_its_schema(tool: Any, args: JsonObject, response: str) -> None:
    """Unknown arguments are left out, and the model gets the same errors as for a function."""
    value = await CrewaiTool(tool, name="").run_async(args=args, tool_context=ToolContext())
    assert response in str(create_outcome(value, context=ToolContext(function_call_id="fc-1")).response)


@pytest.mark.parametrize(
    ("value", "problem"),
    [(print, "'builtin_function_or_method' is not a CrewAI tool"), (Forecast, "Forecast is a class; wrap an instance")],
)
def test_only_tools_of_crewai_are_wrapped(value: object, problem: str) -> None:
    """A class whose parentheses were forgotten is refused, too."""
    with pytest.raises(ValueError, match=problem):
        CrewaiTool(value, name="it")
