"""CrewAI's tools: the parts of them that `CrewaiTool` uses, in place of the package, which wants older requirements.

Where CrewAI is installed, the same tests use its own classes; CONTRIBUTING.md has the command.
"""

# Where types are checked, CrewAI is not installed.
# mypy: disable-error-code="misc, no-redef, override"

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from waystation.core import JsonObject
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

    def _run(self, city: str, days: int = 1) -> str:
        return f"{city}: sun for {days} days"


class Page(BaseModel):
    url: str


class ReadPage(BaseTool):
    name: str = "Read Page"
    description: str = "Read a page."
    args_schema: type[BaseModel] = Page

    def _run(self, url: str) -> dict[str, str]:
        if not url:
            raise LookupError("nothing there")
        return {"text": f"page of {url}"}


class ReadSlowly(ReadPage):
    async def _run(self, url: str) -> str:
        await asyncio.sleep(0)
        return url


async def run(wrapped: CrewaiTool, args: JsonObject) -> Any:
    """Return the response of a call."""
    value = await wrapped.run_async(args=args, tool_context=ToolContext())
    return create_outcome(value, context=ToolContext(function_call_id="fc-1")).response


def test_a_tool_is_declared_by_its_own_schema() -> None:
    """Spaces in the name become underscores, as in ADK."""
    declared = declare(CrewaiTool(Forecast(), name=""))
    assert declared is not None
    assert "Tell the weather." in declared["description"]
    assert (declared["name"], declared["parametersJsonSchema"]) == (
        "weather_forecast",
        {
            "type": "object",
            "properties": {
                "city": {"title": "City", "type": "string", "description": "Where."},
                "days": {"title": "Days", "type": "integer", "default": 1},
            },
            "required": ["city"],
        },
    )


def test_another_name_and_description_replace_those_of_the_tool() -> None:
    """The tool's own ones may not suit the agent."""
    renamed = declare(CrewaiTool(ReadPage(), name="fetch", description="Fetch a page."))
    assert renamed is not None
    assert (renamed["name"], renamed["description"]) == ("fetch", "Fetch a page.")


@pytest.mark.parametrize(
    ("wrapped", "args", "response"),
    [
        (Forecast(), {"city": "Bern", "days": "3", "unknown": 1}, {"result": "Bern: sun for 3 days"}),
        (Forecast(), {"city": "Bern"}, {"result": "Bern: sun for 1 days"}),
        (ReadPage(), {"url": "x"}, {"text": "page of x"}),
        (ReadSlowly(), {"url": "y"}, {"result": "y"}),
    ],
    ids=["coerced", "defaults", "dictionary", "coroutine"],
)
async def test_a_tool_runs_with_the_arguments_of_its_schema(wrapped: Any, args: JsonObject, response: Any) -> None:
    """Arguments that the schema does not have are left out, and a dictionary is the response itself."""
    assert await run(CrewaiTool(wrapped, name=""), args) == response


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ({}, "mandatory input parameters are not present:\ncity\n"),
        ({"city": "Bern", "days": "soon"}, "Parameter 'days': expected type 'int', validation error"),
    ],
    ids=["missing", "wrong"],
)
async def test_arguments_that_do_not_fit_are_answered(args: JsonObject, error: str) -> None:
    """The model gets the same errors as for a function."""
    assert error in (await run(CrewaiTool(Forecast(), name=""), args))["error"]


async def test_an_error_of_the_tool_is_raised() -> None:
    """The call's `on_error` decides what becomes of it, as for any tool."""
    with pytest.raises(LookupError, match="nothing there"):
        await run(CrewaiTool(ReadPage(), name=""), {"url": ""})


@pytest.mark.parametrize(
    ("value", "problem"),
    [(print, "'builtin_function_or_method' is not a CrewAI tool"), (Path, "Path is a class; wrap an instance")],
)
def test_only_tools_of_crewai_are_wrapped(value: object, problem: str) -> None:
    """A class whose parentheses were forgotten is refused, too."""
    with pytest.raises(ValueError, match=problem):
        CrewaiTool(value, name="it")
