"""Sequences, loops, parallel agents and transfers on a real server."""

import asyncio
from typing import Any

from tests.server.conftest import Serve
from tests.server.workflows.outside import approve_and_finish, until, until_call, until_waiting
from waystation.agents import Agent, LoopAgent, ParallelAgent, SequentialAgent
from waystation.client.agent_client import Invocation
from waystation.core import Event
from waystation.testing import FunctionModel, ScriptedModel, calls, says
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
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


def speaks(name: str, *replies: Any, **fields: Any) -> Agent:
    """Return an agent with scripted replies."""
    return Agent(name=name, model=ScriptedModel(*replies), **fields)


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


async def test_a_sequence_waits_three_weeks_for_a_person_and_continues(serve: Serve) -> None:
    """The agent that asked receives the answer before the next one starts."""
    clerk = speaks("clerk", calls(("ask", {"question": "ok?"})), says("agreed"), tools=[LongRunningFunctionTool(ask)])
    team = SequentialAgent(name="team", sub_agents=[clerk, speaks("cashier", says("paid"))])
    async with serve(team) as env:
        invocation, call = await until_call(env.client.start("team", "go"), "fc-1-1")
        assert (call.agent, call.kind) == ("clerk", "long_running")
        assert (await approve_and_finish(invocation)).text == "paid"
        assert await lines(invocation) == ["user: go", "clerk: agreed", "cashier: paid"]


async def test_a_loop_ends_when_a_tool_escalates(serve: Serve) -> None:
    """The agent of the tool finishes its own turn."""
    critic = speaks("critic", says("again"), calls(("stop", {})), says("good"), tools=[stop])
    loop = LoopAgent(name="loop", sub_agents=[speaks("poet", says("one"), says("two"), says("three")), critic])
    async with serve(loop) as env:
        invocation = await env.client.start("loop", "a poem")
        assert (await invocation.result()).text == "good"
        assert await lines(invocation) == [
            "user: a poem", "poet: one", "critic: again", "poet: two", "critic: good"
        ]  # fmt: skip


async def test_parallel_agents_do_not_see_each_other_and_the_next_one_sees_both(serve: Serve) -> None:
    """Their calls run in parallel with different IDs."""
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


async def test_one_branch_waits_for_a_person_while_another_finishes(serve: Serve) -> None:
    """A pending call pauses only its branch."""
    gated = FunctionTool(pay, require_confirmation=True)
    left = speaks("left", calls(("pay", {"amount": 1})), says("paid"), tools=[gated])
    right = speaks("right", says("done"))
    async with serve(ParallelAgent(name="both", sub_agents=[left, right])) as env:
        invocation = await until_waiting(env.client.start("both", "go"), "fc-1-1")

        async def right_is_done() -> bool:
            return "right: done" in await lines(invocation)

        await until(right_is_done, "what the other branch says")
        assert (await approve_and_finish(invocation)).text == "paid"


async def test_escalation_stops_the_other_branches(serve: Serve) -> None:
    """Cancels a tool that runs there and closes its call."""
    slow = speaks("slow", calls(("linger", {})), tools=[linger])
    quick_model = ScriptedModel(calls(("ask", {"question": "now?"})), calls(("stop", {})), says("I have it"))
    quick = Agent(name="quick", model=quick_model, tools=[stop, LongRunningFunctionTool(ask)])
    async with serve(ParallelAgent(name="race", sub_agents=[slow, quick])) as env:
        invocation = await until_waiting(env.client.start("race", "go"), "fc-2-1")

        async def lingers() -> bool:
            return "fc-1-1" in (await invocation.log()).state.calls

        await until(lingers, "a tool that runs")
        assert (await approve_and_finish(invocation)).text == "I have it"
        log = await invocation.log()
    assert log.state.calls["fc-1-1"].closed


async def test_cancelling_stops_every_branch(serve: Serve) -> None:
    """Holds for running tools and for pending calls."""
    gated = FunctionTool(pay, require_confirmation=True)
    left = speaks("left", calls(("pay", {"amount": 1})), tools=[gated])
    right = speaks("right", calls(("linger", {})), tools=[linger])
    async with serve(ParallelAgent(name="both", sub_agents=[left, right])) as env:
        invocation = await until_waiting(env.client.start("both", "go"), "fc-1-1")

        async def lingers() -> bool:
            return "fc-2-1" in (await invocation.log()).state.calls

        await until(lingers, "a tool that runs")
        await invocation.cancel()

        async def ended() -> bool:
            return (await invocation.log()).state.outcome.ended is not None

        await until(ended, "the end")
        assert all(call.closed for call in (await invocation.log()).state.calls.values())


async def test_the_result_names_the_agent_that_took_over(serve: Serve) -> None:
    """The other agent replies in the same invocation; the transfer takes no activity."""
    support = speaks("support", says("How can I help?"), description="Helps.")
    model = ScriptedModel(calls(("transfer_to_agent", {"agent_name": "support"})))
    async with serve(Agent(name="front", model=model, sub_agents=[support])) as env:
        invocation = await env.client.start("front", "help")
        result = await invocation.result()
        history = await invocation.history()
    assert (result.text, result.next_agent) == ("How can I help?", "support")
    kinds = [e.activity_task_scheduled_event_attributes.activity_type.name for e in history.events]
    assert [kind for kind in kinds if kind] == ["call_model", "call_model"]


async def test_a_tool_transfers_the_conversation(serve: Serve) -> None:
    """It sets the action, as in ADK's guide."""

    def check(message: str, tool_context: ToolContext) -> dict[str, str]:
        """Look at a message."""
        tool_context.actions.transfer_to_agent = "support"
        return {"urgent": message}

    front = speaks("front", calls(("check", {"message": "fire"})), tools=[check])
    front.sub_agents = [speaks("support", says("On our way."))]
    async with serve(front) as env:
        assert (await env.client.run("front", "fire")).text == "On our way."


async def test_a_transfer_to_an_unknown_agent_is_reported_to_the_model(serve: Serve) -> None:
    """ADK ends the run; here the model can correct it."""
    model = ScriptedModel(
        calls(("transfer_to_agent", {"agent_name": "nobody"})),
        calls(("transfer_to_agent", {"agent_name": "support"})),
    )
    front = Agent(name="front", model=model, sub_agents=[speaks("support", says("Here."))])
    async with serve(front) as env:
        assert (await env.client.run("front", "help")).text == "Here."
    assert "nobody" in str(model.requests[1].contents)


async def test_an_agent_as_a_tool_may_be_a_sequence(serve: Serve) -> None:
    """The text of its last agent is the result."""
    team = SequentialAgent(
        name="team", description="Writes.", sub_agents=[speaks("a", says("one")), speaks("b", says("two"))]
    )
    model = ScriptedModel(calls(("team", {"request": "go"})), says("done"))
    async with serve(Agent(name="boss", model=model, tools=[AgentTool(team)])) as env:
        await env.client.run("boss", "go")
    assert "two" in str(model.requests[1].contents[-1])
