"""LangChain's tools, with the real langchain-core."""

from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
    tool,
)
from pydantic import BaseModel, Field

from waystation.core.payload import JsonObject
from waystation.tools.base_tool import declare
from waystation.tools.langchain_tool import LangchainTool
from waystation.tools.outcome import create_outcome
from waystation.tools.tool_context import ToolContext


@tool
def add(a: int, b: int = 2) -> int:
    """Add numbers."""
    return a + b


@tool
async def double(a: int) -> int:
    """Double a number."""
    return a * 2


@tool("lookup", return_direct=True)
def look_up(query: str) -> str:
    """Look something up."""
    return f"found {query}"


Kept = Annotated[str, InjectedToolArg]


class Wanted(BaseModel):
    city: str = Field(description="Where.")
    days: int | None = None


class Forecast(BaseTool):
    name: str = "forecast"
    description: str = "Tell the weather."
    args_schema: type[BaseModel] = Wanted

    def _run(self, city: str, days: int | None = None, run_manager: Any = None) -> str:
        return f"{city} {days} {run_manager is not None}"


class Duck:
    """An object that meets ADK's requirements but is not a LangChain tool."""

    name = "duck"
    description = "Quacks."

    def run(self, times: int) -> str:
        return "quack" * times


def declared(wrapped: LangchainTool) -> JsonObject:
    declaration = declare(wrapped)
    assert declaration is not None
    return declaration


async def call(wrapped: LangchainTool, args: JsonObject, context: ToolContext | None = None) -> Any:
    return await wrapped.run_async(args=args, tool_context=context or ToolContext())


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        (
            LangchainTool(add),
            {
                "name": "add",
                "description": "Add numbers.",
                "parametersJsonSchema": {
                    "type": "object",
                    "properties": {
                        "a": {"title": "A", "type": "integer"},
                        "b": {"title": "B", "type": "integer", "default": 2},
                    },
                    "required": ["a"],
                },
            },
        ),
        (
            LangchainTool(Forecast(), name="weather", description="Sun or rain?"),
            {
                "name": "weather",
                "description": "Sun or rain?",
                "parametersJsonSchema": {
                    "type": "object",
                    "properties": {
                        "city": {"title": "City", "type": "string", "description": "Where."},
                        "days": {"title": "Days", "anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                    },
                    "required": ["city"],
                },
            },
        ),
        (
            LangchainTool(Tool(name="echo", description="Says it again.", func=lambda text: text)),
            {
                "name": "echo",
                "description": "Says it again.",
                "parametersJsonSchema": {
                    "type": "object",
                    "properties": {"tool_input": {"type": "string"}},
                    "required": ["tool_input"],
                },
            },
        ),
        (
            LangchainTool(Duck()),
            {
                "name": "duck",
                "description": "Quacks.",
                "parametersJsonSchema": {
                    "title": "duckParams",
                    "type": "object",
                    "properties": {"times": {"title": "Times", "type": "integer"}},
                    "required": ["times"],
                },
            },
        ),
    ],
)
def test_a_tool_is_declared_by_its_own_schema(wrapped: LangchainTool, expected: JsonObject) -> None:
    """The tool's name and description are declared unless others are given."""
    assert declared(wrapped) == expected


@pytest.mark.parametrize(
    ("wrapped", "args", "result"),
    [
        (LangchainTool(add), {"a": 1}, 3),
        (LangchainTool(add), {"a": "1", "b": 3, "unknown": 4}, 4),
        (LangchainTool(double), {"a": 2}, 4),
        (LangchainTool(Forecast()), {"city": "Bern"}, "Bern None True"),
        (LangchainTool(Tool(name="echo", description="", func=lambda text: text)), {"tool_input": "hi"}, "hi"),
        (LangchainTool(StructuredTool.from_function(func=lambda a: a, name="same", description="d")), {"a": [1]}, [1]),
        (LangchainTool(Duck()), {"times": "2"}, "quackquack"),
    ],
)
async def test_a_tool_receives_the_arguments_of_its_schema(
    wrapped: LangchainTool, args: JsonObject, result: object
) -> None:
    """Arguments are converted by the schema, and a run manager is passed if the tool takes one."""
    assert await call(wrapped, args) == result


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ({}, "failed as the following mandatory input parameters are not present:\na\n"),
        ({"a": "x"}, "failed due to argument validation errors:\nParameter 'a': expected type 'int', validation error"),
    ],
)
async def test_invalid_arguments_are_reported_to_the_model(args: JsonObject, error: str) -> None:
    """Invalid arguments are reported like those of any function."""
    outcome = create_outcome(await call(LangchainTool(add), args), context=ToolContext(function_call_id="fc-1"))
    assert outcome.response is not None
    assert error in outcome.response["error"]
    assert outcome.error_type == "InvalidArguments"


async def test_return_direct_ends_the_invocation() -> None:
    """The model is called only if the result is an error."""
    answered, refused = ToolContext(), ToolContext()
    assert await call(LangchainTool(look_up), {"query": "x"}, answered) == "found x"
    await call(LangchainTool(look_up), {}, refused)
    assert answered.actions.skip_summarization is True
    assert refused.actions.skip_summarization is None


async def test_langchain_may_handle_the_errors_of_a_tool() -> None:
    """A tool with an error handler returns the handler's text, and a tool without one raises."""

    def fail() -> str:
        raise ToolException("closed today")

    handling = StructuredTool.from_function(func=fail, name="f", description="d", handle_tool_error=True)
    assert await call(LangchainTool(handling), {}) == "closed today"
    with pytest.raises(ToolException):
        await call(LangchainTool(StructuredTool.from_function(func=fail, name="f", description="d")), {})


async def test_injected_arguments_are_not_declared() -> None:
    """The ID of the call and LangChain's configuration are injected, as in LangChain."""

    @tool
    def note(
        text: str, tool_call_id: Annotated[str, InjectedToolCallId], config: RunnableConfig, kept: Kept = "there"
    ) -> str:
        """Note something."""
        return f"{text} {tool_call_id} {config['configurable']} {kept}"

    wrapped = LangchainTool(note)
    assert declared(wrapped)["parametersJsonSchema"]["properties"].keys() == {"text"}
    context = ToolContext(function_call_id="fc-7")
    assert await call(wrapped, {"text": "hello"}, context) == "hello fc-7 {} there"
    assert "mandatory" in (await call(wrapped, {}, context))["error"]
    assert "'text': expected type 'str'" in (await call(wrapped, {"text": 1}, context))["error"]


def test_an_argument_that_nothing_injects_is_refused() -> None:
    """An argument that nothing injects is refused, because every call would fail."""

    @tool
    def note(text: str, kept: Kept) -> str:
        """Note something."""
        return text + kept

    with pytest.raises(ValueError, match="Tool 'note': the argument 'kept' must be injected"):
        LangchainTool(note)


def test_an_object_that_cannot_run_is_refused() -> None:
    """The error has ADK's text."""
    with pytest.raises(ValueError, match=r"^Tool must be a Langchain tool, have a 'run' or '_run' method\.$"):
        LangchainTool(object())
    with pytest.raises(ValueError, match=r"^Forecast is a class; wrap an instance: LangchainTool\(Forecast\(…\)\)\.$"):
        LangchainTool(Forecast)
