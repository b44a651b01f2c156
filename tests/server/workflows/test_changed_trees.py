"""A tree of agents is edited and its worker restarted while a call waits in it: what was recorded counts.

Which agents a composite runs, and how often, is recorded when it is entered. What an agent says and may do is looked up
by its name when it works. Every test also replays the whole history, and sees that no workflow task failed.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.workflows.outside import QUICK, approve_and_finish, failure, held, quiet, until_waiting
from tests.server.workflows.said import content
from waystation.agents import Agent, BaseAgent, LoopAgent, ParallelAgent, SequentialAgent
from waystation.client.agent_client import Invocation
from waystation.core import Event
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.long_running_tool import LongRunningFunctionTool

ASK = calls(("ask", {}))


def ask() -> None:
    """Ask somebody."""


def asks(*replies: Any, name: str = "asker", **fields: Any) -> Agent:
    """Return an agent that asks somebody."""
    return Agent(name=name, model=ScriptedModel(*replies), tools=[LongRunningFunctionTool(ask)], **fields)


def speaks(name: str, *texts: str, **fields: Any) -> Agent:
    """Return an agent that says this."""
    return Agent(name=name, model=ScriptedModel(*(says(text) for text in texts)), **fields)


def team(*agents: BaseAgent, **fields: Any) -> SequentialAgent:
    """Return a sequence of agents."""
    return SequentialAgent(name="team", sub_agents=list(agents), **fields)


async def parked(serve: Serve, before: BaseAgent, call: str) -> tuple[Invocation, str]:
    """Begin an invocation, and end its worker once this call waits; return also the task queue."""
    async with serve(before, verify=False, settings=QUICK) as env:
        invocation = await until_waiting(env.client.start(before.name, "go"), call)
        await quiet(invocation)
        return invocation, env.client.task_queue


async def continued(serve: Serve, before: BaseAgent, after: BaseAgent, call: str = "fc-1-1") -> list[str]:
    """Begin with `before`, go on with `after` once the call waits, approve it; return what the agents said."""
    invocation, queue = await parked(serve, before, call)
    async with serve(after, task_queue=queue, adopt=[invocation], settings=QUICK):
        await approve_and_finish(invocation, call)
        return lines((await invocation.log()).state.events)


async def failed(
    serve: Serve, before: BaseAgent, after: BaseAgent, call: str = "fc-1-1", *, is_held: bool = True
) -> tuple[str | None, str]:
    """As `continued`, for an invocation that fails; if it is held, give up. Return type and message of its failure."""
    invocation, queue = await parked(serve, before, call)
    async with serve(after, task_queue=queue, adopt=[invocation], settings=QUICK) as env:
        assert (await invocation.approve(call))["accepted"] is True
        if is_held:
            assert (await held(invocation))["reason"] == "agent_missing"
            await env.client.held.give_up(invocation.id)
        error = await failure(invocation)
        assert all(each.closed for each in (await invocation.log()).state.calls.values())
        return error.type, error.message


def lines(events: list[Event]) -> list[str]:
    """Return what agents said, as `author: text`."""
    return [
        f"{event.author}: {part['text']}"
        for event in events
        for part in (event.content or {}).get("parts", ())
        if "text" in part and event.author != "user"
    ]


async def test_the_agent_that_waits_was_removed(serve: Serve) -> None:
    """Its answer counts, but no worker has the agent: the invocation is held."""
    kind, message = await failed(serve, team(asks(ASK), speaks("last", "end")), team(speaks("last", "end")))
    assert kind == "UnknownAgent"
    assert "'asker'" in message


async def test_the_agent_that_comes_next_was_removed(serve: Serve) -> None:
    """The sequence was recorded with it; leaving it out in silence could leave out a check."""
    kind, message = await failed(serve, team(asks(ASK), speaks("last", "end")), team(asks(says("thanks"))))
    assert kind == "UnknownAgent"
    assert "'last'" in message


async def test_the_agent_that_comes_next_was_renamed(serve: Serve) -> None:
    """A new name is another agent."""
    after = team(asks(says("thanks")), speaks("final", "end"))
    assert (await failed(serve, team(asks(ASK), speaks("last", "end")), after))[0] == "UnknownAgent"


async def test_the_root_was_renamed(serve: Serve) -> None:
    """The tree in which its agents are found is gone with it."""
    after = SequentialAgent(name="crew", sub_agents=[asks(says("thanks"))])
    assert (await failed(serve, team(asks(ASK)), after))[0] == "UnknownAgent"


async def test_the_order_of_a_sequence_was_changed(serve: Serve) -> None:
    """The recorded order counts: each agent works once."""
    before = team(speaks("first", "one"), asks(ASK), speaks("last", "three"))
    after = team(speaks("last", "end"), asks(says("two")), speaks("first"))
    assert await continued(serve, before, after, "fc-2-1") == ["first: one", "asker: two", "last: end"]


async def test_an_agent_was_added_to_a_sequence(serve: Serve) -> None:
    """It works in invocations that begin from now on."""
    after = team(asks(says("thanks")), speaks("added"), speaks("last", "end"))
    assert await continued(serve, team(asks(ASK), speaks("last")), after) == ["asker: thanks", "last: end"]


async def test_a_sequence_was_turned_into_parallel_agents(serve: Serve) -> None:
    """What was begun as a sequence goes on as one."""
    after = ParallelAgent(name="team", sub_agents=[asks(says("thanks")), speaks("last", "end")])
    assert await continued(serve, team(asks(ASK), speaks("last")), after) == ["asker: thanks", "last: end"]


async def test_the_composite_became_an_agent_with_a_model(serve: Serve) -> None:
    """While it still has the others as sub-agents: they are found, and its model is not asked."""
    boss = Agent(name="team", model=ScriptedModel(), sub_agents=[asks(says("thanks")), speaks("last", "end")])
    assert await continued(serve, team(asks(ASK), speaks("last")), boss) == ["asker: thanks", "last: end"]


async def test_a_step_that_became_a_sequence_is_entered_as_what_it_is_now(serve: Serve) -> None:
    """An agent with a model tells its shape when it is entered, which it was not yet."""
    grown = SequentialAgent(name="last", sub_agents=[speaks("a", "one"), speaks("b", "two")])
    after = team(asks(says("thanks")), grown)
    assert await continued(serve, team(asks(ASK), speaks("last")), after) == ["asker: thanks", "a: one", "b: two"]


async def test_a_composite_step_that_became_an_agent_with_a_model_runs_what_was_recorded(serve: Serve) -> None:
    """Its children were recorded with the sequence; it is held for those that are gone."""
    step = SequentialAgent(name="step", sub_agents=[speaks("inner", "x")])
    kind, message = await failed(serve, team(asks(ASK), step), team(asks(says("thanks")), speaks("step", "end")))
    assert kind == "UnknownAgent"
    assert "'inner'" in message


async def test_a_composite_step_with_callbacks_that_became_an_agent_with_a_model_answers(serve: Serve) -> None:
    """It had to be entered by an activity, which finds what it is now."""
    step = SequentialAgent(name="step", sub_agents=[speaks("inner", "x")], before_agent_callback=lambda **_: None)
    after = team(asks(says("thanks")), speaks("step", "end"))
    assert await continued(serve, team(asks(ASK), step), after) == ["asker: thanks", "step: end"]


async def test_a_waiting_agent_that_became_a_sequence_and_back_goes_on(serve: Serve) -> None:
    """While it is another thing nothing happens to what waits."""
    invocation, queue = await parked(serve, team(asks(ASK), speaks("last")), "fc-1-1")
    changed = team(SequentialAgent(name="asker", sub_agents=[speaks("inner")]), speaks("last"))
    async with serve(changed, task_queue=queue, verify=False):
        assert [call.function_call_id for call in await invocation.pending()] == ["fc-1-1"]
    back = team(asks(says("thanks")), speaks("last", "end"))
    async with serve(back, task_queue=queue, adopt=[invocation], settings=QUICK):
        assert (await approve_and_finish(invocation)).text == "end"


async def test_a_waiting_agent_that_became_a_sequence_fails_typed(serve: Serve) -> None:
    """A conversation needs a model that goes on with it."""
    after = team(SequentialAgent(name="asker", sub_agents=[speaks("inner")]), speaks("last"))
    assert (await failed(serve, team(asks(ASK), speaks("last")), after, is_held=False))[0] == "InvalidAgent"


async def test_callbacks_that_were_added_run_where_an_activity_runs_anyway(serve: Serve) -> None:
    """Entering an agent with a model is one; leaving one that was entered without such callbacks is none."""
    by_the_way: Callable[..., Any] = lambda callback_context: content(f"by {callback_context.agent_name}")  # noqa: E731
    after = team(
        asks(says("thanks"), before_agent_callback=by_the_way, after_agent_callback=by_the_way),
        speaks("last", before_agent_callback=by_the_way),
        before_agent_callback=by_the_way,
        after_agent_callback=by_the_way,
    )
    assert await continued(serve, team(asks(ASK), speaks("last")), after) == ["asker: thanks", "last: by last"]


async def test_callbacks_that_were_removed_leave_activities_that_do_nothing(serve: Serve) -> None:
    """They were announced when the agents were entered."""

    def by_the_way(callback_context: Any) -> Any:
        return content("by the way")

    before = team(
        asks(ASK, after_agent_callback=by_the_way),
        speaks("last", after_agent_callback=by_the_way),
        after_agent_callback=by_the_way,
    )
    after = team(asks(says("thanks")), speaks("last", "end"))
    assert await continued(serve, before, after) == ["asker: thanks", "last: end"]


@pytest.mark.parametrize(("then", "now"), [(2, 5), (2, 1), (2, None), (1, 3)])
async def test_a_changed_limit_of_a_loop_counts_from_the_next_invocation_on(
    serve: Serve, then: int, now: int | None
) -> None:
    """It was recorded when the loop was entered."""

    def loop(limit: int | None, *replies: Any) -> LoopAgent:
        return LoopAgent(name="loop", sub_agents=[asks(*replies)], max_iterations=limit)

    after = loop(now, *(says(f"round {number}") for number in range(1, 6)))
    rounds = [f"asker: round {number}" for number in range(1, then + 1)]
    assert await continued(serve, loop(then, ASK), after) == rounds
