"""Custom tools, long-running functions, agents as tools, and the settings they share."""

import inspect
import re
from datetime import timedelta
from typing import Any

import pytest

from waystation.agents import LlmAgent
from waystation.core.errors import InvalidTool
from waystation.tools.agent_tool import AgentTool
from waystation.tools.base_tool import BaseTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def ask(question: str) -> None:
    """Ask a person."""


# Settings of tools


def test_settings_are_kept_as_attributes() -> None:
    """The attributes keep the settings, from which the annotated call is built."""
    tool = FunctionTool(
        ask,
        timeout=timedelta(seconds=30),
        retries=2,
        heartbeat_timeout=timedelta(seconds=5),
        task_queue="gpu",
        effect="read",
        on_error="raise",
        deadline=timedelta(days=1),
    )
    assert (tool.timeout, tool.retries, tool.heartbeat_timeout) == (timedelta(seconds=30), 2, timedelta(seconds=5))
    assert (tool.task_queue, tool.effect, tool.on_error) == ("gpu", "read", "raise")
    assert tool.deadline == timedelta(days=1)


def test_long_running_functions_have_the_same_settings() -> None:
    """Only `quick` and the settings of a confirmation are absent, as in ADK; those of an answer are added."""
    settings = set(inspect.signature(FunctionTool).parameters)
    assert set(inspect.signature(LongRunningFunctionTool).parameters) == settings - {
        "require_confirmation",
        "hint",
        "quick",
    } | {"response_schema", "answered_by"}
    with pytest.raises(TypeError, match="require_confirmation"):
        LongRunningFunctionTool(ask, require_confirmation=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"effect": None}, "`quick` is True, but `effect` is None"),
        ({"effect": "once"}, "`quick` is True, but `effect` is 'once'"),
        ({"effect": "read", "task_queue": "gpu"}, "`quick` is True, but `task_queue` is 'gpu'"),
        ({"effect": "read", "quick": 1}, "`quick` is 1; use True or False."),
    ],
)
def test_a_tool_that_cannot_be_quick_is_refused(settings: Any, problem: str) -> None:
    """A quick tool may run twice, in the workflow's worker, so settings that forbid this are refused."""
    with pytest.raises(InvalidTool, match=re.escape(problem)):
        FunctionTool(ask, **{"quick": True, **settings})


@pytest.mark.parametrize(
    ("confirmed", "declared", "expected"),
    [(False, None, "repeatable"), (True, None, "once"), (True, "repeatable", "repeatable"), (False, "read", "read")],
)
def test_a_confirmed_call_happens_once_unless_declared_otherwise(confirmed: bool, declared: Any, expected: str) -> None:
    """A confirmed call runs once, because an approval covers one payment, for example."""
    assert FunctionTool(ask, effect=declared).effect_when(confirmed=confirmed) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout": 30}, "Tool 'ask': `timeout` is 30; use a timedelta, such as timedelta(seconds=30)."),
        (
            {"deadline": timedelta()},
            "Tool 'ask': `deadline` is datetime.timedelta(0); use a duration above zero.",
        ),
        ({"deadline": timedelta.max}, "Tool 'ask': `deadline` is 999999999 days; use at most 36500 days (100 years)."),
        (
            {"cancel_within": timedelta(seconds=0.01)},
            "Tool 'ask': `cancel_within` is datetime.timedelta(microseconds=10000); use at least 0.05 s, as a "
            "heartbeat takes that long.",
        ),
        ({"retries": -1}, "Tool 'ask': `retries` is -1; use a whole number of at least 0."),
        ({"retries": True}, "Tool 'ask': `retries` is True; use a whole number of at least 0."),
        ({"effect": "never"}, "Tool 'ask': `effect` is 'never'; use 'read', 'repeatable' or 'once'."),
        ({"on_error": "ignore"}, "Tool 'ask': `on_error` is 'ignore'; use 'tell' or 'raise'."),
        ({"task_queue": ""}, "Tool 'ask': `task_queue` is ''; use the name of a task queue."),
        (
            {"require_confirmation": "yes"},
            "Tool 'ask': `require_confirmation` is 'yes'; use True, False or a function.",
        ),
        ({"hint": 3}, "Tool 'ask': `hint` is 3; use a string."),
    ],
)
def test_a_setting_with_a_wrong_value_is_refused(settings: dict[str, Any], message: str) -> None:
    """A wrong value raises when the tool is created, and the error has the remedy."""
    with pytest.raises(InvalidTool) as raised:
        FunctionTool(ask, **settings)
    assert str(raised.value) == message


def test_several_wrong_settings_are_named_together() -> None:
    """One error names all wrong settings."""
    with pytest.raises(InvalidTool, match=r"`timeout` is 1; .* `retries` is -1; "):
        FunctionTool(ask, timeout=1, retries=-1)  # type: ignore[arg-type]


# BaseTool


async def test_a_custom_tool_overrides_settings_in_its_body() -> None:
    """The settings have defaults on the class, which a body overrides."""

    class Weather(BaseTool):
        timeout = timedelta(seconds=3)

        async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
            return {"city": args["city"]}

    tool = Weather(name="weather", description="Tell the weather.", custom_metadata={"team": "sky"})
    assert (tool.timeout, tool.retries, tool.is_long_running) == (timedelta(seconds=3), 0, False)
    assert tool.custom_metadata == {"team": "sky"}
    assert await tool.run_async(args={"city": "Ulm"}, tool_context=ToolContext()) == {"city": "Ulm"}
    assert repr(tool) == "Weather('weather')"


def test_a_custom_tool_may_set_its_name_itself() -> None:
    """A tool may omit `super().__init__()`, as in ADK; the arguments of ADK's constructor are accepted."""

    class Plain(BaseTool):
        def __init__(self) -> None:
            self.name, self.description = "plain", "Do it."

    assert (Plain().is_long_running, dict(Plain().custom_metadata), Plain().setting_problems()) == (False, {}, [])
    assert BaseTool(name="x", description="", behavior="BLOCKING", response_scheduling="SILENT").behavior == "BLOCKING"


async def test_a_custom_tool_without_run_async_raises() -> None:
    """A custom tool without `run_async` raises, instead of returning None."""
    with pytest.raises(NotImplementedError, match="BaseTool has no run_async"):
        await BaseTool(name="x", description="").run_async(args={}, tool_context=ToolContext())


# LongRunningFunctionTool


def test_a_long_running_function_warns_the_model_against_calling_twice() -> None:
    """The note in the declaration follows the docstring, and is not part of the tool's description."""
    note = (
        "NOTE: This operation is long-running. Once it has returned an intermediate or pending status, do not call it "
        "again; its final result will follow."
    )

    def bare() -> None: ...

    tool = LongRunningFunctionTool(ask)
    assert tool.is_long_running
    assert tool.description == "Ask a person."
    assert (tool._get_declaration() or {})["description"] == f"Ask a person.\n\n{note}"
    assert (LongRunningFunctionTool(bare)._get_declaration() or {})["description"] == note


# AgentTool


def clerk() -> LlmAgent:
    return LlmAgent(name="clerk", description="Looks things up.")


def test_an_agent_tool_takes_a_request() -> None:
    """The tool has the agent's name and description."""
    assert AgentTool(clerk())._get_declaration() == {
        "name": "clerk",
        "description": "Looks things up.",
        "parametersJsonSchema": {
            "type": "object",
            "properties": {"request": {"type": "string"}},
            "required": ["request"],
        },
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"request": "find it", "more": 1}, "find it"),
        ({"b": 1, "a": "ü"}, '{"a": "ü", "b": 1}'),
        ({"request": {"q": 1}}, '{"request": {"q": 1}}'),
        ({}, "{}"),
    ],
)
def test_an_agent_receives_the_request_or_else_all_arguments(args: dict[str, Any], message: str) -> None:
    """The agent receives all arguments if there is no request, because models do not always follow the declaration."""
    assert AgentTool(clerk()).message_for(args) == message


async def test_an_agent_tool_cannot_be_run_by_a_tool() -> None:
    """The call raises, because only the workflow can start a child."""
    with pytest.raises(InvalidTool) as raised:
        await AgentTool(clerk()).run_async(args={"request": "x"}, tool_context=ToolContext())
    assert str(raised.value) == (
        "Tool 'clerk': an AgentTool cannot run inside another tool, because its agent runs as a child of the "
        "invocation; add the AgentTool to an agent's `tools` so that the model can call it."
    )


def test_only_an_agent_can_be_an_agent_tool() -> None:
    """The error names the function that was passed by mistake."""
    with pytest.raises(TypeError, match="Expected an agent, got function"):
        AgentTool(ask)  # type: ignore[arg-type]
    assert AgentTool(clerk(), skip_summarization=True).skip_summarization
