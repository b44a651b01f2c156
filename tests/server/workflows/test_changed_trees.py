"""A tree of agents is edited while a call waits in it, and the recorded tree applies.

The agents of a composite and their number of rounds are recorded when it is entered. Instructions and permissions of an
agent are looked up by its name when it runs. Every test also replays the whole history and verifies that no workflow
task failed.
"""

from collections.abc import Callable
from typing import Any

from tests.server.conftest import Serve
from tests.server.workflows.author_code import content
from tests.steps import (
    QUICK_SETTINGS,
    approve_and_finish,
    catch_failure,
    start_and_wait,
    wait_for_hold,
    wait_until_quiet,
)
from waystation.agents import Agent, BaseAgent, LoopAgent, SequentialAgent
from waystation.client.agent_client import Invocation
from waystation.core.contract import Event
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool

ASK = calls(("ask", {}))


def ask() -> None:
    """Ask somebody."""


def asks(*replies: Any, name: str = "asker", **fields: Any) -> Agent:
    """Return an agent that asks somebody."""
    return Agent(name=name, model=ScriptedModel(*replies), tools=[LongRunningFunctionTool(ask)], **fields)


def speaks(name: str, *texts: str, **fields: Any) -> Agent:
    """Return an agent that repeats one text."""
    return Agent(name=name, model=ScriptedModel(*(says(text) for text in texts)), **fields)


def team(*agents: BaseAgent, **fields: Any) -> SequentialAgent:
    """Return a sequence of agents."""
    return SequentialAgent(name="team", sub_agents=list(agents), **fields)


async def parked(serve: Serve, before: BaseAgent, call: str) -> tuple[Invocation, str]:
    """Start an invocation, and stop its worker once this call waits; return the task queue, too."""
    async with serve(before, verify=False, settings=QUICK_SETTINGS) as env:
        invocation = await start_and_wait(env.client.start(before.name, "go"), call)
        await wait_until_quiet(invocation)
        return invocation, env.client.task_queue


async def continued(serve: Serve, before: BaseAgent, after: BaseAgent, call: str = "fc-1-1") -> list[str]:
    """Start with `before`, continue with `after` once the call waits, approve it; return the texts of the agents."""
    invocation, queue = await parked(serve, before, call)
    async with serve(after, task_queue=queue, adopt=[invocation], settings=QUICK_SETTINGS):
        await approve_and_finish(invocation, call)
        return lines((await invocation.log()).state.events)


async def failed(
    serve: Serve, before: BaseAgent, after: BaseAgent, call: str = "fc-1-1", *, is_held: bool = True
) -> tuple[str | None, str]:
    """Do the same for an invocation that fails, giving up a hold; return type and message of its failure."""
    invocation, queue = await parked(serve, before, call)
    async with serve(after, task_queue=queue, adopt=[invocation], settings=QUICK_SETTINGS) as env:
        assert (await invocation.approve(call))["accepted"] is True
        if is_held:
            assert (await wait_for_hold(invocation))["reason"] == "agent_missing"
            await env.client.held.give_up(invocation.id)
        error = await catch_failure(invocation)
        assert all(each.closed for each in (await invocation.log()).state.calls.values())
        return error.type, error.message


def lines(events: list[Event]) -> list[str]:
    """Return the texts of agents, as `author: text`."""
    return [
        f"{event.author}: {part['text']}"
        for event in events
        for part in (event.content or {}).get("parts", ())
        if "text" in part and event.author != "user"
    ]


async def test_removing_the_waiting_agent_holds_the_invocation(serve: Serve) -> None:
    """The answer counts, but no worker has the agent."""
    kind, message = await failed(serve, team(asks(ASK), speaks("last", "end")), team(speaks("last", "end")))
    assert kind == "UnknownAgent"
    assert "'asker'" in message


async def test_renaming_the_root_holds_the_invocation(serve: Serve) -> None:
    """The agents of the tree are found through the root."""
    after = SequentialAgent(name="crew", sub_agents=[asks(says("thanks"))])
    assert (await failed(serve, team(asks(ASK)), after))[0] == "UnknownAgent"


async def test_reordering_a_sequence_keeps_the_recorded_order(serve: Serve) -> None:
    """A reordered sequence keeps the recorded order, and each agent runs once."""
    before = team(speaks("first", "one"), asks(ASK), speaks("last", "three"))
    after = team(speaks("last", "end"), asks(says("two")), speaks("first"))
    assert await continued(serve, before, after, "fc-2-1") == ["first: one", "asker: two", "last: end"]


async def test_a_composite_that_became_an_agent_with_a_model_continues(serve: Serve) -> None:
    """The sub-agents of the changed agent are still found, and its model is not called."""
    boss = Agent(name="team", model=ScriptedModel(), sub_agents=[asks(says("thanks")), speaks("last", "end")])
    assert await continued(serve, team(asks(ASK), speaks("last")), boss) == ["asker: thanks", "last: end"]


async def test_a_step_that_became_a_sequence_is_entered_as_a_sequence(serve: Serve) -> None:
    """An agent with a model reports its spec when it is entered, which had not happened."""
    grown = SequentialAgent(name="last", sub_agents=[speaks("a", "one"), speaks("b", "two")])
    after = team(asks(says("thanks")), grown)
    assert await continued(serve, team(asks(ASK), speaks("last")), after) == ["asker: thanks", "a: one", "b: two"]


async def test_a_composite_step_with_callbacks_that_became_an_agent_with_a_model_replies(serve: Serve) -> None:
    """An activity has to enter it, and finds its current kind."""
    step = SequentialAgent(name="step", sub_agents=[speaks("inner", "x")], before_agent_callback=lambda **_: None)
    after = team(asks(says("thanks")), speaks("step", "end"))
    assert await continued(serve, team(asks(ASK), step), after) == ["asker: thanks", "step: end"]


async def test_a_waiting_agent_that_became_a_sequence_fails_with_a_typed_error(serve: Serve) -> None:
    """A conversation needs a model to continue."""
    after = team(SequentialAgent(name="asker", sub_agents=[speaks("inner")]), speaks("last"))
    assert (await failed(serve, team(asks(ASK), speaks("last")), after, is_held=False))[0] == "InvalidAgent"


async def test_added_callbacks_run_only_in_existing_activities(serve: Serve) -> None:
    """Entering an agent with a model is an activity; leaving one that was entered without callbacks is not."""
    by_the_way: Callable[..., Any] = lambda callback_context: content(f"by {callback_context.agent_name}")  # noqa: E731
    after = team(
        asks(says("thanks"), before_agent_callback=by_the_way, after_agent_callback=by_the_way),
        speaks("last", before_agent_callback=by_the_way),
        before_agent_callback=by_the_way,
        after_agent_callback=by_the_way,
    )
    assert await continued(serve, team(asks(ASK), speaks("last")), after) == ["asker: thanks", "last: by last"]


async def test_removed_callbacks_leave_activities_without_effect(serve: Serve) -> None:
    """The callbacks were announced when the agents were entered."""

    def by_the_way(callback_context: Any) -> Any:
        return content("by the way")

    before = team(
        asks(ASK, after_agent_callback=by_the_way),
        speaks("last", after_agent_callback=by_the_way),
        after_agent_callback=by_the_way,
    )
    after = team(asks(says("thanks")), speaks("last", "end"))
    assert await continued(serve, before, after) == ["asker: thanks", "last: end"]


async def test_a_changed_limit_of_a_loop_applies_to_the_next_invocation(serve: Serve) -> None:
    """The limit was recorded when the loop was entered."""

    def loop(limit: int, *replies: Any) -> LoopAgent:
        return LoopAgent(name="loop", sub_agents=[asks(*replies)], max_iterations=limit)

    after = loop(5, *(says(f"round {number}") for number in (1, 2, 3)))
    assert await continued(serve, loop(2, ASK), after) == ["asker: round 1", "asker: round 2"]
