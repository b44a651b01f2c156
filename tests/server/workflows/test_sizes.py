"""An invocation's payloads and commands stay below the server's limits: 2 MB a payload, 4 MB a workflow task.

A payload over the limit blocks a workflow, and a task over it ends one.
"""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.steps import start_and_wait, tool_responses, wait_for_ignored_answers, wait_until_quiet
from waystation.agents import Agent
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext


@pytest.mark.parametrize("size", [900_000, 1_500_000, 2_096_500])
async def test_an_approval_with_a_large_response_does_not_block_the_invocation(serve: Serve, size: int) -> None:
    """A large approval either counts and the tool receives its response, or is ignored and the call stays pending."""
    sizes_seen: list[int] = []

    def pay(amount: int, tool_context: ToolContext) -> str:
        assert tool_context.tool_confirmation is not None
        sizes_seen.append(len((tool_context.tool_confirmation.payload or {}).get("x", "")))
        return "ok"

    model = ScriptedModel(calls(("pay", {"amount": 5})), says("Paid."))
    agent = Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with serve(agent) as env:
        invocation = await start_and_wait(env.client.start("payer", "pay 5"), "fc-1")
        large = {"function_call_id": "fc-1", "action": "approve", "response": {"x": "x" * size}}
        await invocation.handle.signal("answer", large)
        await wait_until_quiet(invocation)
        counted = size < 1_000_000
        if not counted:
            assert await wait_for_ignored_answers(invocation, 1) == ["InvalidAnswer"]
            await invocation.approve("fc-1")
        assert (await invocation.result()).text == "Paid."
        assert sizes_seen == [size if counted else 0]


async def test_five_large_approvals_in_one_workflow_task_do_not_end_the_invocation(serve: Serve) -> None:
    """The server ends an invocation whose workflow task issues 4 MB of commands, so large content is not repeated."""
    sizes_seen: list[int] = []

    def pay(amount: int, tool_context: ToolContext) -> str:
        assert tool_context.tool_confirmation is not None
        sizes_seen.append(len((tool_context.tool_confirmation.payload or {})["x"]))
        return "ok"

    model = ScriptedModel(calls(*[("pay", {"amount": n}) for n in range(5)]), says("Paid."))
    agent = Agent(name="payer", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with serve(agent, verify=False) as env:
        queue = env.client.task_queue
        invocation = await start_and_wait(env.client.start("payer", "pay"), *[f"fc-{n + 1}" for n in range(5)])
    for n in range(5):
        await invocation.approve(f"fc-{n + 1}", response={"x": "x" * 900_000}, signal=True)
    async with serve(agent, task_queue=queue, adopt=[invocation]):
        assert (await invocation.result()).text == "Paid."
        assert sizes_seen == [900_000] * 5
        assert tool_responses(model.requests[1]) == [{"result": "ok", "x": "x" * 900_000}] * 5


def caller(model: ScriptedModel, *tools: Any) -> Agent:
    """Return an agent that can call an echo, an agent that repeats its message."""
    echo = Agent(name="echo", model=ScriptedModel(*[says("Heard.") for _ in range(10)]))
    return Agent(name="caller", model=model, tools=[AgentTool(echo), *tools])


async def test_five_calls_of_an_agent_with_a_large_state_do_not_end_the_invocation(serve: Serve) -> None:
    """Each called agent receives the state; calls that do not fit into one workflow task are answered with an error."""
    model = ScriptedModel(calls(*[("echo", {"request": str(n)}) for n in range(5)]), says("Done."))
    async with serve(caller(model)) as env:
        result = await env.client.run("caller", "call", state={"text": "x" * 900_000})
        assert (result.status, result.text) == ("completed", "Done.")
        answers = tool_responses(model.requests[1])
        assert answers[0] == {"result": "Heard."}
        assert [answer.get("error_type") for answer in answers] == [None, None, "TooLarge", "TooLarge", "TooLarge"]


async def test_a_message_that_grows_when_it_is_recorded_does_not_fail_the_model_call(serve: Serve) -> None:
    """Arguments of quotation marks double with each encoding: 0.4 MB of them are 1.6 MB in the message to an agent."""
    model = ScriptedModel(calls(("echo", {"quotes": '"' * 450_000})), says("Done."))
    async with serve(caller(model)) as env:
        result = await env.client.run("caller", "call")
        assert (result.status, result.text, len(model.requests)) == ("completed", "Done.", 2)
        assert tool_responses(model.requests[1])[0]["error_type"] == "TooLarge"


async def test_a_result_over_the_limit_omits_the_largest_parts(serve: Serve) -> None:
    """State and text have 0.9 MB each: the result names the omitted part, which the history still has."""

    def remember(tool_context: ToolContext) -> str:
        tool_context.state["text"] = "s" * 900_000
        return "ok"

    model = ScriptedModel(calls(("remember", {})), says("t" * 900_000))
    async with serve(Agent(name="worker", model=model, tools=[remember])) as env:
        invocation = await env.client.start("worker", "work")
        result = await invocation.result()
        assert (result.omitted, len(result.text)) == (("content", "state_delta"), 900_000)
        assert len((await invocation.state())["text"]) == 900_000


async def test_a_large_answer_of_a_called_agent_is_an_ordinary_result(serve: Serve) -> None:
    """0.9 MB of text from a child reach the parent's model."""
    echo = Agent(name="echo", model=ScriptedModel(says("x" * 900_000)))
    model = ScriptedModel(calls(("echo", {"request": "hi"})), says("Done."))
    async with serve(Agent(name="caller", model=model, tools=[AgentTool(echo)])) as env:
        assert (await env.client.run("caller", "call")).text == "Done."
        assert len(tool_responses(model.requests[1])[0]["result"]) == 900_000


async def test_edited_arguments_of_many_calls_in_one_workflow_task_do_not_end_the_invocation(serve: Serve) -> None:
    """The activity reads large arguments from the history."""
    sizes: list[int] = []

    def write(text: str) -> str:
        sizes.append(len(text))
        return "written"

    model = ScriptedModel(calls(*[("write", {"text": ""}) for _ in range(5)]), says("Done."))
    agent = Agent(name="writer", model=model, tools=[FunctionTool(write, require_confirmation=True)])
    async with serve(agent, verify=False) as env:
        queue = env.client.task_queue
        invocation = await start_and_wait(env.client.start("writer", "write"), *[f"fc-{n + 1}" for n in range(5)])
    for n in range(5):
        await invocation.answer("edit", f"fc-{n + 1}", args={"text": "x" * 900_000}, signal=True)
    async with serve(agent, task_queue=queue, adopt=[invocation]):
        assert (await invocation.result()).text == "Done."
        assert sizes == [900_000] * 5
