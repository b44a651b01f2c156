"""Limits, failing models, and state over parallel calls and pauses."""

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.server.conftest import Serve
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.errors import ModelOverloaded, ModelRefused
from waystation.testing import ScriptedHuman, ScriptedModel, calls, responses, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


def note(key: str, value: int, tool_context: ToolContext) -> str:
    """Note a value."""
    tool_context.state[key] = value
    return "noted"


async def failure(invocation: Invocation) -> ApplicationError:
    """Wait for the failure of an invocation."""
    with pytest.raises(WorkflowFailureError) as raised:
        await invocation.result()
    assert isinstance(raised.value.cause, ApplicationError)
    return raised.value.cause


async def test_a_request_that_the_model_refuses_fails_the_invocation(serve: Serve) -> None:
    """A refused request is not retried, because it would be refused again."""
    model = ScriptedModel(ModelRefused("no such model", status=404), says("never said"))
    async with serve(Agent(name="ag", model=model)) as env:
        error = await failure(await env.client.start("ag", "go"))
    assert (error.type, error.message) == ("ModelFailed", "no such model")
    assert len(model.requests) == 1


async def test_an_overloaded_model_is_called_again_when_it_says(serve: Serve) -> None:
    """The attempts leave no trace in the conversation."""
    busy = ModelOverloaded("busy", status=429, retry_after_s=0.05)
    model = ScriptedModel(busy, busy, says("Now."))
    async with serve(Agent(name="ag", model=model)) as env:
        invocation = await env.client.start("ag", "go")
        assert (await invocation.result()).text == "Now."
        started = [
            event.activity_task_started_event_attributes.attempt
            for event in (await invocation.history()).events
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
        ]
    assert started == [3]
    assert [request.attempt for request in model.requests] == [1, 2, 3]


async def test_temporary_state_survives_a_pause_and_never_leaves(serve: Serve) -> None:
    """Temporary state survives a pause, although ADK loses it."""

    def recall(tool_context: ToolContext) -> str:
        """Recall what was noted before the pause."""
        return str(tool_context.state.get("temp:k"))

    model = ScriptedModel(calls(("note", {"key": "temp:k", "value": 7})), calls(("recall", {})), says("done"))
    gated = FunctionTool(recall, require_confirmation=True)
    async with serve(Agent(name="ag", model=model, tools=[note, gated])) as env:
        invocation = await env.client.start("ag", "go")
        await ScriptedHuman("approve").attend(invocation)
        result = await invocation.result()
    assert responses(model.requests[-1])[-1] == ("recall", {"result": "7"})
    assert result.state_delta == {}
