"""An invocation that no worker can continue is held visibly, without failing, until a worker can continue it."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.agents import Till
from tests.server.conftest import Serve
from tests.steps import (
    QUICK_SETTINGS,
    approve_and_finish,
    catch_failure,
    count_events,
    make_quick_settings,
    start_and_finish,
    start_and_wait,
    start_raw,
    tool_responses,
    wait_for_hold,
    wait_for_ignored_answers,
    wait_until,
)
from waystation.agents import Agent, ReadonlyContext
from waystation.client import agent_directory
from waystation.client.agent_client import Invocation
from waystation.core.contract import Retries
from waystation.core.errors import ModelOverloaded
from waystation.history import PendingRetry, fetch_retries
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import FunctionModel, ScriptedModel, calls, says
from waystation.tools import BaseTool, BaseToolset
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

PAY = calls(("pay", {"amount": 5}))


def payer(till: Till, *replies: Any, **options: Any) -> Agent:
    """Return an agent whose payments must be approved and run at most once."""
    tool = FunctionTool(till.pay, require_confirmation=True, **options)
    return Agent(name="agent", model=ScriptedModel(*replies), tools=[tool])


def ask() -> None:
    """Ask somebody."""


def hold_events(log: Any) -> list[str]:
    """Return the reasons of the events that report holds."""
    return [event.custom_metadata["held"]["reason"] for event in log.state.events if event.custom_metadata]


async def start_and_stop_worker(serve: Serve, before: Agent) -> tuple[Invocation, str]:
    """Start an invocation, wait until its call is pending, and stop the worker."""
    async with serve(before, verify=False, settings=QUICK_SETTINGS) as env:
        invocation = await start_and_wait(env.client.start("agent", "go"), "fc-1")
        return invocation, env.client.task_queue


async def test_an_approved_call_without_its_tool_is_held_until_a_worker_has_the_tool(serve: Serve) -> None:
    """The call runs once, as soon as the tool is back."""
    till, model = Till(), ScriptedModel(says("Paid."))
    invocation, queue = await start_and_stop_worker(serve, payer(till, PAY))
    async with serve(
        Agent(name="agent", model=ScriptedModel()), task_queue=queue, adopt=[invocation], settings=QUICK_SETTINGS
    ):
        await invocation.approve("fc-1")
        hold = await wait_for_hold(invocation)
        assert (hold["reason"], hold["function_call_id"]) == ("tool_missing", "fc-1")
        assert hold["message"].startswith("This worker cannot run `pay`: agent 'agent' has no tool with this name")
    after = Agent(name="agent", model=model, tools=[FunctionTool(till.pay, require_confirmation=True)])
    async with serve(after, task_queue=queue, adopt=[invocation], settings=QUICK_SETTINGS):
        assert (await invocation.result()).text == "Paid."
    assert (till.paid, tool_responses(model.requests[0])) == ([5], [{"paid": 5}])
    assert hold_events(await invocation.log()) == ["tool_missing"]


async def test_a_call_of_an_agent_that_only_another_worker_serves_is_held_and_runs_there(serve: Serve) -> None:
    """The name of the agent is known from the invocation itself, so it is not an error."""
    till = Till()
    invocation, queue = await start_and_stop_worker(serve, payer(till, PAY))
    async with serve(
        Agent(name="other", model=ScriptedModel()), task_queue=queue, adopt=[invocation], settings=QUICK_SETTINGS
    ):
        await invocation.approve("fc-1")
        assert (await wait_for_hold(invocation))["reason"] == "agent_missing"
        async with serve(payer(till, says("Paid.")), task_queue=queue, adopt=[invocation], settings=QUICK_SETTINGS):
            assert (await invocation.result()).text == "Paid."
    assert till.paid == [5]


async def test_an_agent_that_may_not_be_announced_yet_is_held(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of agents is new after the server's database was emptied. No client or worker relies on it then."""
    monkeypatch.setattr(agent_directory, "SETTLED_S", 3_600)
    monkeypatch.setattr(agent_directory, "GRACE_S", ())
    async with serve(Agent(name="other", model=ScriptedModel()), settings=QUICK_SETTINGS) as env:
        invocation = await start_raw(env.client, "early", {"agent": "newcomer", "message": "hi"})
        starting = asyncio.create_task(env.client.start("newcomer", "hi"))
        [hold] = await wait_until(lambda: env.client.held.holds(invocation.id), "a hold")
        assert hold["reason"] == "agent_missing"
        newcomer = Agent(name="newcomer", model=ScriptedModel(says("Hello."), says("Hello.")))
        async with serve(newcomer, task_queue=env.client.task_queue, adopt=[invocation], settings=QUICK_SETTINGS):
            assert (await invocation.result()).text == "Hello."
            assert (await (await starting).result()).text == "Hello."


@pytest.mark.slow
async def test_workers_with_different_agents_can_share_a_task_queue(serve: Serve) -> None:
    """Every call reaches a worker with its agent, and runs once."""
    till = Till()

    def spender(name: str) -> Agent:
        def act(request: LlmRequest) -> LlmResponse:
            return says("Paid.") if tool_responses(request) else PAY

        return Agent(name=name, model=FunctionModel(act), tools=[FunctionTool(till.pay, effect="once")])

    async with (
        serve(spender("left"), settings=QUICK_SETTINGS) as env,
        serve(spender("right"), task_queue=env.client.task_queue, settings=QUICK_SETTINGS),
    ):
        runs = [env.client.run(name, "pay") for name in ("left", "right") * 5]
        assert [result.text for result in await asyncio.gather(*runs)] == ["Paid."] * 10
    assert till.paid == [5] * 10


async def test_a_held_call_whose_worker_is_lost_is_not_repeated(serve: Serve) -> None:
    """The next attempt finds that an earlier one had started the tool."""
    paid: list[int] = []

    async def pay(amount: int) -> None:
        paid.append(amount)
        time.sleep(2)  # noqa: ASYNC251  # stops the heartbeats, so that the worker counts as lost

    invocation, queue = await start_and_stop_worker(serve, payer(Till(), PAY, heartbeat_timeout=timedelta(seconds=1)))
    async with serve(
        Agent(name="agent", model=ScriptedModel()), task_queue=queue, verify=False, settings=QUICK_SETTINGS
    ):
        await invocation.approve("fc-1")
        await wait_for_hold(invocation)
    model = ScriptedModel(says("Unknown."))
    after = Agent(name="agent", model=model, tools=[FunctionTool(pay, require_confirmation=True)])
    async with serve(after, task_queue=queue, adopt=[invocation], settings=QUICK_SETTINGS):
        assert (await invocation.result()).text == "Unknown."
    assert (paid, tool_responses(model.requests[0])[0]["error_type"]) == ([5], "OutcomeUnknown")


class Away(BaseToolset):
    """A toolset that cannot list its tools while its server is unavailable."""

    def __init__(self, till: Till) -> None:
        super().__init__()
        self.is_away, self._till, self.name = False, till, "till"

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return one tool, or raise."""
        if self.is_away:
            raise OSError("connection refused")
        return [FunctionTool(self._till.pay, require_confirmation=True)]


async def test_an_approved_call_is_held_until_its_toolset_is_back(serve: Serve) -> None:
    """The restart of an MCP server does not cost the approval."""
    till = Till()
    toolset = Away(till)
    agent = Agent(name="agent", model=ScriptedModel(PAY, says("Paid.")), tools=[toolset])
    async with serve(agent, settings=QUICK_SETTINGS) as env:
        invocation = await start_and_wait(env.client.start("agent", "go"), "fc-1")
        toolset.is_away = True
        await invocation.approve("fc-1")
        assert (await wait_for_hold(invocation))["reason"] == "toolset_failed"
        toolset.is_away = False
        assert (await invocation.result()).text == "Paid."
    assert till.paid == [5]


async def test_a_worker_that_stops_before_the_tool_starts_leaves_the_call_to_the_next_worker(serve: Serve) -> None:
    """An approved call with the effect `once` has a single attempt, but nothing has taken effect yet."""
    listing = asyncio.Event()

    class Silent(Away):
        async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
            if self.is_away:
                listing.set()
                await asyncio.Event().wait()
            return await super().get_tools(readonly_context)

    till = Till()
    toolset = Silent(till)
    agent = Agent(name="agent", model=ScriptedModel(PAY), tools=[toolset])
    hurried = {"verify": False, "graceful_shutdown_timeout": timedelta(seconds=0.1), "settings": QUICK_SETTINGS}
    async with serve(agent, **hurried) as env:
        invocation = await start_and_wait(env.client.start("agent", "go"), "fc-1")
        toolset.is_away = True
        await invocation.approve("fc-1")
        await listing.wait()
    after = Agent(name="agent", model=ScriptedModel(says("Paid.")), tools=[Away(till)])
    async with serve(after, task_queue=env.client.task_queue, adopt=[invocation], settings=QUICK_SETTINGS):
        assert (await invocation.result()).text == "Paid."
    assert till.paid == [5]


async def test_a_worker_that_stops_after_the_tool_ran_reports_an_unknown_outcome(serve: Serve) -> None:
    """A callback was still running, so there is no result, and the tool must not run again."""
    till, ran = Till(), asyncio.Event()

    async def wait(**_: Any) -> None:
        ran.set()
        await asyncio.Event().wait()

    tools = [FunctionTool(till.pay, effect="once")]
    agent = Agent(name="agent", model=ScriptedModel(PAY), tools=tools, after_tool_callback=wait)
    async with serve(agent, verify=False, graceful_shutdown_timeout=timedelta(seconds=0.1)) as env:
        invocation = await env.client.start("agent", "go")
        await ran.wait()
    model = ScriptedModel(says("Unknown."))
    after = Agent(name="agent", model=model, tools=tools)
    async with serve(after, task_queue=env.client.task_queue, adopt=[invocation]):
        assert (await invocation.result()).text == "Unknown."
    assert (till.paid, tool_responses(model.requests[0])[0]["error_type"]) == ([5], "OutcomeUnknown")


async def test_a_model_call_is_held_until_its_toolset_is_back(serve: Serve) -> None:
    """The model is never called without the tools, and the reason names the toolset."""
    till = Till()
    toolset = Away(till)
    toolset.is_away = True
    model = ScriptedModel(says("Hello."))
    async with serve(Agent(name="agent", model=model, tools=[toolset]), settings=QUICK_SETTINGS) as env:
        invocation = await env.client.start("agent", "go")
        hold = await wait_for_hold(invocation)
        assert hold["reason"] == "toolset_failed"
        assert hold["message"].startswith("Toolset Away did not list its tools: OSError at ")
        assert model.requests == []
        toolset.is_away = False
        assert (await invocation.result()).text == "Hello."
    assert [tool["name"] for tool in model.requests[0].tools] == ["pay"]


class Outage(ScriptedModel):
    """A model that is not available until the test ends the outage."""

    def __init__(self, *replies: Any) -> None:
        super().__init__(*replies)
        self.is_down, self.refused = True, 0

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the next reply, or raise."""
        if self.is_down:
            self.refused += 1
            raise ModelOverloaded("The model is overloaded (503).")
        return await super().generate(request, on_text=on_text)


async def test_a_model_outage_holds_the_invocation_and_adds_no_history(serve: Serve) -> None:
    """The history has only the attempt that reported the hold."""
    model = Outage(says("Hello."))
    async with serve(Agent(name="agent", model=model), settings=QUICK_SETTINGS) as env:
        invocation = await env.client.start("agent", "go")
        hold = await wait_for_hold(invocation)
        assert (hold["reason"], hold["message"]) == ("model_unavailable", "The model is overloaded (503).")
        refused, events = model.refused, await count_events(invocation)

        async def tried_again() -> bool:
            return model.refused >= refused + 5

        await wait_until(tried_again, "more attempts")
        assert await count_events(invocation) == events
        model.is_down = False
        assert (await invocation.result()).text == "Hello."
        described = await invocation.handle.describe()
        assert described.search_attributes["WaystationStatus"] == ["running"]
        assert (await described.memo()).get("waystation_held") is None


async def test_a_short_model_outage_is_not_recorded(serve: Serve) -> None:
    """Up to three failed attempts are retries of one activity, which add no history events."""
    model = ScriptedModel(*[ModelOverloaded("Busy.")] * 3, says("Hello."), says("Hello."))
    async with serve(Agent(name="agent", model=model), settings=QUICK_SETTINGS) as env:
        invocation = await env.client.start("agent", "go")
        assert (await invocation.result()).text == "Hello."
        assert len(model.requests) == 4
        undisturbed = await start_and_finish(env.client.start("agent", "go"))
        assert await count_events(invocation) == await count_events(undisturbed)
        assert [event.author for event in (await invocation.log()).state.events] == ["user", "agent"]


async def test_a_hold_ends_with_its_reason_when_its_time_is_up(serve: Serve) -> None:
    """The invocation fails as it would have failed without a hold."""
    short = make_quick_settings(limit=timedelta(milliseconds=300))
    async with serve(Agent(name="agent", model=Outage()), settings=short) as env:
        error = await catch_failure(await env.client.start("agent", "go"))
        assert (error.type, error.message) == ("ModelUnavailable", "The model is overloaded (503).")


async def test_an_abandoned_held_model_call_fails_the_invocation(serve: Serve) -> None:
    """The failure has the reason of the hold."""
    async with serve(Agent(name="agent", model=Outage()), settings=QUICK_SETTINGS) as env:
        invocation = await env.client.start("agent", "go")
        await wait_for_hold(invocation)
        [given_up] = await env.client.held.give_up(invocation.id)
        assert given_up["reason"] == "model_unavailable"
        error = await catch_failure(invocation)
        assert error.type == "ModelUnavailable"
        assert error.message == "The model is overloaded (503). An operator gave up waiting."


async def test_giving_up_without_a_hold_is_ignored(serve: Serve) -> None:
    """The signal leaves a waiting invocation unchanged."""
    async with serve(payer(Till(), PAY, says("Paid."))) as env:
        invocation = await start_and_wait(env.client.start("agent", "go"), "fc-1")
        assert await env.client.held.give_up(invocation.id) == []
        await invocation.handle.signal("give_up")
        assert await wait_for_ignored_answers(invocation, 1) == ["InvalidAnswer"]
        assert (await approve_and_finish(invocation, "fc-1")).text == "Paid."


async def test_an_attempt_can_be_made_at_once(serve: Serve) -> None:
    """`retry` does not wait for the pause between two attempts, and adds nothing to the history."""
    model = Outage(says("Hello."))
    slow = make_quick_settings(retries=Retries(initial_interval=timedelta(hours=1)))
    async with serve(Agent(name="agent", model=model), settings=slow) as env:
        invocation = await env.client.start("agent", "go")

        async def is_paused() -> bool:
            return model.refused > 4

        await wait_until(is_paused, "an attempt while the call was held")
        model.is_down = False

        async def retried() -> bool:
            return bool(await env.client.held.retry(invocation.id))

        await wait_until(retried, "a pending attempt")
        assert (await invocation.result()).text == "Hello."


async def test_an_attempt_that_is_due_stays_in_its_task_queue(serve: Serve) -> None:
    """Retrying again and again does not keep busy workers from the call."""
    model = Outage()
    slow = make_quick_settings(retries=Retries(initial_interval=timedelta(hours=1)))
    async with serve(Agent(name="agent", model=model), settings=slow, verify=False) as env:
        invocation = await env.client.start("agent", "go")

        async def is_paused() -> bool:
            return model.refused > 4

        await wait_until(is_paused, "an attempt while the call was held")
    await wait_until(lambda: env.client.held.retry(invocation.id), "a pending attempt")

    async def due() -> list[PendingRetry]:
        retries, _ = await fetch_retries(env.temporal, invocation.id)
        return [retry for retry in retries if retry.is_due]

    queued = await wait_until(due, "an attempt that is due")
    assert await env.client.held.retry(invocation.id) == queued
    assert await due() == queued
    await invocation.handle.terminate()


async def test_another_calls_deadline_passes_during_a_hold(serve: Serve) -> None:
    """Other calls of the invocation keep their deadlines."""
    till = Till()
    both = calls(("pay", {"amount": 5}), ("ask", {}))
    asking = LongRunningFunctionTool(ask, deadline=timedelta(milliseconds=500))
    toolset = Away(till)
    agent = Agent(name="agent", model=ScriptedModel(both, says("Done.")), tools=[toolset, asking])
    async with serve(agent, settings=QUICK_SETTINGS) as env:
        invocation = await start_and_wait(env.client.start("agent", "go"), "fc-1", "fc-2")
        toolset.is_away = True
        await invocation.approve("fc-1")
        await wait_for_hold(invocation)

        async def is_expired() -> bool:
            return (await invocation.log()).state.calls["fc-2"].expired

        await wait_until(is_expired, "the deadline of fc-2")
        toolset.is_away = False
        assert (await invocation.result()).text == "Done."
