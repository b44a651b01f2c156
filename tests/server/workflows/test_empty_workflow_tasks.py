"""Workflow tasks without effect read the same from a history as on a replay, on a server."""

import asyncio
import contextlib
import random
from datetime import timedelta
from typing import Any

import pytest
from temporalio.worker import Worker

from tests.agents import Gate, Till
from tests.server.conftest import Serve
from tests.steps import (
    answer_and_finish,
    approve_and_finish,
    catch_refusal,
    start_and_wait,
    wait_until,
    wait_until_quiet,
)
from tests.tiers import drawn_examples, is_full
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.actions import Action
from waystation.core.contract import Position
from waystation.core.errors import AnswerRefused, AnswerUnconfirmed, UnknownCall
from waystation.core.projection import Scheduled, position_of
from waystation.history import HistoryReader
from waystation.testing import Replays, ScriptedModel, assert_invocation_holds, calls, responses, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

DEADLINE = timedelta(seconds=2)


def ask() -> None:
    """Ask somebody."""


@pytest.mark.parametrize("cached", [0, 10])
@pytest.mark.parametrize("quiet_progress", [False, True])
async def test_refused_updates_during_results_change_nothing_for_readers(
    serve: Serve, cached: int, quiet_progress: bool
) -> None:
    """Answers, refusals and a tool's result arrive together; history and replayed workflow agree."""
    for _ in range(drawn_examples(4)):
        till = Till()
        model = ScriptedModel(calls(("pay", {"amount": 5}), ("ask", {})), says("Done."))
        tools = [FunctionTool(till.pay, require_confirmation=True), LongRunningFunctionTool(ask)]
        async with serve(Agent(name="payer", model=model, tools=tools), max_cached_workflows=cached) as env:
            invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1", "fc-2")
            await invocation.approve("fc-1")
            refused = [catch_refusal(invocation.reject("fc-1")) for _ in range(3)]
            if quiet_progress:
                await invocation.answer("progress", "fc-2", response={"n": 1}, wake=False, signal=True)
            assert await asyncio.gather(*refused) == ["AlreadyAnswered"] * 3
            assert await catch_refusal(invocation.approve("fc-1")) == "AlreadyAnswered"
            await approve_and_finish(invocation, "fc-2")
            assert till.paid == [5]


@pytest.mark.parametrize("seed", range(drawn_examples(48) // 4))
async def test_messages_in_any_order_are_read_as_the_workflow_processed_them(serve: Serve, seed: int) -> None:
    """Readers see the workflow's events and times after any order of signals, updates, tool results and restarts."""
    draw, gate = random.Random(seed), Gate()
    in_flight = asyncio.Semaphore(8)  # the server takes ten updates of one workflow at a time

    async def look() -> str:
        """Look."""
        await gate.passed()
        return "seen"

    options: dict[str, Any] = {"graceful_shutdown_timeout": timedelta(seconds=0.1)}
    model = ScriptedModel(calls(("ask", {}), ("ask", {}), ("look", {})), says("Done."))
    async with serve(
        Agent(name="asker", model=model, tools=[LongRunningFunctionTool(ask), look]), verify=False, **options
    ) as env:
        invocation = await start_and_wait(env.client.start("asker", "go"), "fc-1", "fc-2")

        async def step(number: int) -> None:
            await asyncio.sleep(draw.random() * 0.5)
            call_id = draw.choice(["fc-1", "fc-2"])
            # A workflow task that is lost with its worker is not repeated before its time is up.
            async with in_flight:
                with contextlib.suppress(AnswerUnconfirmed, UnknownCall):
                    match draw.choice(["signal", "junk", "update", "refused", "refused"]):
                        case "signal":
                            await invocation.answer("claim", call_id, by="ann", signal=True)
                        case "junk":
                            await invocation.answer("approve", "fc-9", signal=True)
                        case "update":
                            await invocation.answer("claim", call_id, by="ann")
                        case _:
                            await invocation.approve("fc-9")
            if number == 10:
                gate.open()

        first, rest = draw.randint(0, 20), 26
        await asyncio.gather(*map(step, range(first)))
        await env.worker.shutdown()
        away = [asyncio.create_task(step(number)) for number in range(first, rest)]
        async with Worker(**env.worker.config()):
            await asyncio.gather(*away)
            gate.open()
            for call_id in ("fc-1", "fc-2"):
                await invocation.answer("respond", call_id, response={"go": True}, by="ann")
            assert (await invocation.result()).text == "Done."
            await assert_invocation_holds(invocation, replays=Replays.PRODUCTION)


@pytest.mark.parametrize("seed", range(20 if is_full() else 3))
async def test_answers_around_a_deadline_are_read_as_the_workflow_processed_them(serve: Serve, seed: int) -> None:
    """Readers see the workflow's events and times for any order of answers around a deadline, even without a worker."""
    draw = random.Random(seed)
    in_flight = asyncio.Semaphore(8)  # the server takes ten updates of one workflow at a time
    ran = list[int]()

    def pay(amount: int) -> None:
        """Pay."""
        ran.append(amount)

    payments = 4
    tools = [FunctionTool(pay, require_confirmation=True, deadline=DEADLINE), LongRunningFunctionTool(ask)]
    model = ScriptedModel(calls(("ask", {}), *(("pay", {"amount": n}) for n in range(payments))), says("Done."))
    options: dict[str, Any] = {"graceful_shutdown_timeout": timedelta(seconds=0.1)}
    async with serve(Agent(name="payer", model=model, tools=tools), verify=False, **options) as env:
        invocation = await env.client.start("payer", "go")

        async def is_pending() -> bool:
            return "fc-1" in {call.function_call_id for call in await invocation.pending()}

        await wait_until(is_pending, "the calls are pending, or have expired on a slow machine")

        async def step() -> None:
            await asyncio.sleep(draw.random() * 1.5 * DEADLINE.total_seconds())
            actions: list[Action] = ["approve", "reject", "claim", "release"]
            action = draw.choice(actions)
            number = draw.choice([9, *range(2, 2 + payments)])  # the call 9 does not exist
            async with in_flight:
                with contextlib.suppress(AnswerUnconfirmed, AnswerRefused):
                    await invocation.answer(action, f"fc-{number}", by="ann", signal=draw.random() < 0.5)

        steps = [asyncio.create_task(step()) for _ in range(12)]
        await asyncio.sleep(draw.random() * DEADLINE.total_seconds())
        await env.worker.shutdown()
        await asyncio.sleep(draw.random() * DEADLINE.total_seconds())
        async with Worker(**env.worker.config()):
            await asyncio.gather(*steps)
            assert (await answer_and_finish(invocation, "respond", "fc-1", response={"go": True})).text == "Done."
            await assert_invocation_holds(invocation, replays=Replays.PRODUCTION)
        log = await invocation.log()
    approved = [
        call.args["amount"] for call in log.state.calls.values() if call.answer and call.answer.action == "approve"
    ]
    assert sorted(ran) == sorted(approved)


async def test_an_update_after_results_without_effect_is_read_by_everyone(serve: Serve) -> None:
    """A replaying worker receives these results before the update, so commands name every entry."""
    gates = [asyncio.Event() for _ in range(3)]

    async def look(n: int) -> int:
        """Look."""
        await gates[n].wait()
        return n

    till = Till()
    model = ScriptedModel(calls(("pay", {"amount": 5}), *(("look", {"n": n}) for n in range(3))), says("Done."))
    tools = [FunctionTool(till.pay, require_confirmation=True), look]
    async with serve(Agent(name="payer", model=model, tools=tools)) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        for number, gate in enumerate(gates, 2):
            gate.set()

            async def returned(call_id: str = f"fc-{number}") -> bool:
                return (await invocation.log()).state.calls[call_id].outcome is not None

            await wait_until(returned, f"fc-{number} returned")
        await wait_until_quiet(invocation)
        assert (await approve_and_finish(invocation, "fc-1")).text == "Done."
        named = [ref for position in await positions(invocation) for ref in position.new]
        # All but the end, the last reply and its request.
        assert len(named) == (await invocation.log()).length - 3
    assert responses(model.requests[1]) == [("pay", {"paid": 5}), *(("look", {"result": n}) for n in range(3))]


async def positions(invocation: Invocation) -> list[Position]:
    """Return the entries that the commands of an invocation name as applied before them."""
    facts = HistoryReader().read((await invocation.history()).events)
    return [position_of(fact) for fact in facts if isinstance(fact, Scheduled)]
