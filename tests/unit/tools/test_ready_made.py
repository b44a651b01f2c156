"""Tools of Waystation that ask a person, and the one that leaves a loop."""

from waystation.agents import Agent
from waystation.apps.registry import authoring_problems
from waystation.tools.base_tool import declare
from waystation.tools.exit_loop_tool import exit_loop
from waystation.tools.function_tool import FunctionTool
from waystation.tools.get_user_choice_tool import get_user_choice_tool
from waystation.tools.long_running_tool import NOTE
from waystation.tools.outcome import create_outcome
from waystation.tools.request_input_tool import request_input
from waystation.tools.tool_context import ToolContext


def context() -> ToolContext:
    return ToolContext(function_call_id="fc-1")


def test_request_input_is_declared_as_in_adk() -> None:
    """The declaration equals ADK's, except for the words of the description."""
    declared = declare(request_input)
    assert declared is not None
    schema = declared["parametersJsonSchema"]
    assert (declared["name"], schema["title"]) == ("adk_request_input", "adk_request_inputParams")
    assert schema["required"] == ["message"]
    assert {name: {**field, "description": ""} for name, field in schema["properties"].items()} == {
        "message": {"title": "Message", "type": "string", "description": ""},
        "response_schema": {
            "title": "Response Schema",
            "anyOf": [{"additionalProperties": True, "type": "object"}, {"type": "null"}],
            "default": None,
            "description": "",
        },
    }
    assert declared["description"].endswith(NOTE)


async def test_request_input_has_no_interim_response() -> None:
    """The call has no interim response, because the person's answer is the response."""
    call_context = context()
    result = await request_input.run_async(args={"message": "Which city?"}, tool_context=call_context)
    outcome = create_outcome(result, context=call_context, long_running=request_input.is_long_running)
    assert (outcome.response, outcome.final, outcome.actions) == (None, False, None)


def test_only_the_built_in_tool_may_have_the_reserved_name() -> None:
    """Only the built-in tool may use the name, because readers of the history rely on it."""

    def adk_request_input(message: str) -> None: ...

    assert authoring_problems(Agent(name="a", tools=[request_input])) == []
    assert len(authoring_problems(Agent(name="b", tools=[adk_request_input]))) == 1


async def test_get_user_choice_waits_without_calling_the_model() -> None:
    """The tool sets `skip_summarization`, as in ADK."""
    declared = declare(get_user_choice_tool)
    assert declared is not None
    assert declared["name"] == "get_user_choice"
    assert declared["parametersJsonSchema"]["properties"] == {
        "options": {"title": "Options", "type": "array", "items": {"type": "string"}}
    }
    call_context = context()
    answered = await get_user_choice_tool.run_async(args={"options": ["red", "green"]}, tool_context=call_context)
    outcome = create_outcome(answered, context=call_context, long_running=True)
    assert (outcome.response, outcome.final) == (None, False)
    assert outcome.actions is not None
    assert outcome.actions.skip_summarization is True


async def test_exit_loop_escalates() -> None:
    """The tool escalates, and has no parameters and no result for the model."""
    tool = FunctionTool(exit_loop)
    declared = declare(tool)
    assert declared is not None
    assert declared.keys() == {"name", "description"}
    call_context = context()
    assert await tool.run_async(args={}, tool_context=call_context) is None
    actions = call_context.recorded_actions()
    assert (actions.escalate, actions.skip_summarization) == (True, True)
