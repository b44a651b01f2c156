"""Sequences, loops, parallel agents and transfers on a real server."""

import asyncio
from typing import Any

from tests.agents import speaks
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, run, start_and_wait, wait_until
from waystation.agents import Agent, ParallelAgent, SequentialAgent
from waystation.client.agent_client import Invocation
from waystation.core.contract import Event
from waystation.testing import FunctionModel, ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def stop(tool_context: ToolContext) -> str:
    """Leave the loop."""
    tool_context.actions.escalate = True
    return "stopped"


def ask(question: str) -> None:
    """Ask a person."""


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


async def linger(tool_context: ToolContext) -> None:
    """Run until stopped."""
    await asyncio.Event().wait()


async def lines(invocation: Invocation) -> list[str]:
    """Return the texts of events, as `author: text`."""
    return [f"{event.author}: {text}" for event in (await invocation.log()).state.events for text in _texts(event)]


def _texts(event: Event) -> list[str]:
    return [part["text"] for part in (event.content or {}).get("parts", ()) if "text" in part]


async def test_a_sequence_of_agents_shares_one_conversation(serve: Serve) -> None:
    """One workflow runs all of them, and the last one's text is the result."""
    team = SequentialAgent(name="team", sub_agents=[speaks("writer", says("draft")), speaks("editor", says("final"))])
    async with serve(team) as env:
        invocation = await env.client.start("team", "a poem")
        result = await invocation.result()
        assert (result.text, await lines(invocation)) == (
            "final",
            ["user: a poem", "writer: draft", "editor: final"],
        )


async def test_parallel_agents_do_not_see_each_other_and_the_next_one_sees_both(serve: Serve) -> None:
    """Parallel agents call tools in parallel with different IDs, and only the next agent sees both."""
    conversations = []

    def judge(request: Any) -> Any:
        conversations.append(str(request.contents))
        return says("judged")

    left = speaks("left", calls(("pay", {"amount": 1})), says("left says"), tools=[pay])
    right = speaks("right", calls(("pay", {"amount": 2})), says("right says"), tools=[pay])
    both = ParallelAgent(name="both", sub_agents=[left, right])
    team = SequentialAgent(name="team", sub_agents=[both, Agent(name="judge", model=FunctionModel(judge))])
    async with serve(team) as env:
        invocation = await env.client.start("team", "go")
        assert (await invocation.result()).text == "judged"
        log = await invocation.log()
    assert sorted(log.state.calls) == ["fc-2-1", "fc-3-1"]
    for agent, other in ((left, "right"), (right, "left")):
        assert isinstance(agent.model, ScriptedModel)
        assert f"[{other}]" not in str(agent.model.requests[-1].contents)
    assert "left says" in conversations[0]
    assert "right says" in conversations[0]


async def test_escalation_stops_the_other_branches(serve: Serve) -> None:
    """An escalation cancels a running tool of another branch and closes its call."""
    slow = speaks("slow", calls(("linger", {})), tools=[linger])
    quick_model = ScriptedModel(calls(("ask", {"question": "now?"})), calls(("stop", {})), says("I have it"))
    quick = Agent(name="quick", model=quick_model, tools=[stop, LongRunningFunctionTool(ask)])
    async with serve(ParallelAgent(name="race", sub_agents=[slow, quick])) as env:
        invocation = await start_and_wait(env.client.start("race", "go"), "fc-2-1")

        async def lingers() -> bool:
            return "fc-1-1" in (await invocation.log()).state.calls

        await wait_until(lingers, "a tool that runs")
        assert (await approve_and_finish(invocation)).text == "I have it"
        log = await invocation.log()
    assert log.state.calls["fc-1-1"].closed


async def test_an_agent_as_a_tool_may_be_a_sequence(serve: Serve) -> None:
    """The result of a sequence that is called as a tool is the text of its last agent."""
    team = SequentialAgent(
        name="team", description="Writes.", sub_agents=[speaks("a", says("one")), speaks("b", says("two"))]
    )
    model = ScriptedModel(calls(("team", {"request": "go"})), says("done"))
    await run(serve(Agent(name="boss", model=model, tools=[AgentTool(team)])), "boss", "go")
    assert "two" in str(model.requests[1].contents[-1])
