"""Of decisions that come twice, too late, or without a worker, the first recorded one counts."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.agents import Till
from tests.server.approvals.asking import asker, payer
from tests.server.conftest import Serve
from tests.steps import (
    approve_and_finish,
    catch_refusal,
    ignored_reasons,
    start_and_wait,
    wait_for_calls,
    wait_for_ignored_answers,
)
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.actions import Action
from waystation.core.errors import AlreadyAnswered, AnswerUnconfirmed
from waystation.embedded import EmbeddedServer
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool


def ask() -> None:
    """Ask a person."""


def busy(till: Till) -> Agent:
    """Return an agent that pays 5 after a confirmation, and waits for another answer, too."""
    model = ScriptedModel(calls(("pay", {"amount": 5}), ("ask", {})), says("Done."))
    tools = [FunctionTool(till.pay, require_confirmation=True), LongRunningFunctionTool(ask)]
    return Agent(name="busy", model=model, tools=tools)


async def end(invocation: Invocation) -> None:
    """Answer the other pending call."""
    await wait_for_calls(invocation, "fc-2")
    await approve_and_finish(invocation, "fc-2")


@pytest.mark.parametrize("signal", [True, False], ids=["signal", "update"])
async def test_a_repeated_decision_has_one_effect(serve: Serve, signal: bool) -> None:
    """Hazard: a double click, or a request that the network repeats. The later ones are refused as already answered."""
    till, times = Till(), 5
    async with serve(busy(till)) as env:
        invocation = await start_and_wait(env.client.start("busy", "go"), "fc-1", "fc-2")
        sent = [invocation.approve("fc-1", by="dana", signal=signal) for _ in range(times)]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        if signal:
            assert await wait_for_ignored_answers(invocation, times - 1) == ["AlreadyAnswered"] * (times - 1)
        else:
            assert sorted(type(each).__name__ for each in outcomes) == ["AlreadyAnswered"] * (times - 1) + ["dict"]
        await end(invocation)
        assert till.paid == [5]


@pytest.mark.parametrize(
    ("first", "second", "signal"), [("approve", "reject", True), ("reject", "approve", False)], ids=["signal", "update"]
)
async def test_the_opposite_decision_changes_nothing(serve: Serve, first: Action, second: Action, signal: bool) -> None:
    """Hazard: the opposite of the first decision. The refusal names the first decision and its approver."""
    till = Till()
    async with serve(busy(till)) as env:
        invocation = await start_and_wait(env.client.start("busy", "go"), "fc-1", "fc-2")
        await invocation.answer(first, "fc-1", by="dana")
        if signal:
            await invocation.answer(second, "fc-1", by="emil", signal=True)
            assert await wait_for_ignored_answers(invocation, 1) == ["AlreadyAnswered"]
        else:
            with pytest.raises(AlreadyAnswered, match=f"by 'dana': {first}"):
                await invocation.answer(second, "fc-1", by="emil")
        await end(invocation)
        assert till.paid == ([5] if first == "approve" else [])
        if signal:
            assert ignored_reasons((await invocation.log()).state.events) == ["AlreadyAnswered"]


async def test_a_used_update_id_never_confirms_another_decision(serve: Serve) -> None:
    """Hazard: the server answers a used ID with its first outcome, so a rejection would read as accepted."""
    till = Till()
    async with serve(busy(till)) as env:
        invocation = await start_and_wait(env.client.start("busy", "go"), "fc-1", "fc-2")
        assert (await invocation.approve("fc-1"))["action"] == "approve"
        for _ in range(2):
            assert await catch_refusal(invocation.reject("fc-1")) == "AlreadyAnswered"
        await end(invocation)
        assert till.paid == [5]


async def test_the_same_answer_sent_again_gets_the_first_receipt(serve: Serve) -> None:
    """A sender that lost its receipt sends again. The call runs once; other content or an ended invocation fails."""
    till = Till()
    async with serve(busy(till)) as env:
        invocation = await start_and_wait(env.client.start("busy", "go"), "fc-1", "fc-2")
        sent: dict[str, Any] = {"args": {"amount": 4}, "answer_id": "a-1", "by": "dana"}
        first = await invocation.answer("edit", "fc-1", **sent)
        assert await invocation.answer("edit", "fc-1", **sent) == first
        await end(invocation)
        assert await invocation.answer("edit", "fc-1", **sent) == first
        assert await catch_refusal(invocation.answer("edit", "fc-1", **sent, comment="x")) == "AlreadyAnswered"
        assert till.paid == [4]
        assert ignored_reasons((await invocation.log()).state.events) == ["AlreadyAnswered"]


async def test_a_signal_survives_the_server_and_an_unconfirmed_update_is_reported(tmp_path: Path) -> None:
    """Hazard: an update without a worker is lost with the server. It was never confirmed; a signal is kept."""
    till = Till()
    async with EmbeddedServer(db_filename=tmp_path / "db") as server:
        async with AgentEnvironment(payer(till.pay), asker(), server=server, task_queue="q") as env:
            paid = await env.client.start("payer", "go", id="paid")
            asked_invocation = await env.client.start("asker", "go", id="asked")
            await wait_for_calls(paid, "fc-1")
            await wait_for_calls(asked_invocation, "fc-1")
        with pytest.raises(AnswerUnconfirmed):
            await asked_invocation.approve("fc-1", confirm_within=timedelta(seconds=0.2))
        await paid.approve("fc-1", signal=True)
    async with (
        EmbeddedServer(db_filename=tmp_path / "db") as server,
        AgentEnvironment(payer(till.pay), asker(), server=server, task_queue="q") as env,
    ):
        await env.client.invocation("paid").result()
        assert till.paid == [5]
        asked_invocation = env.client.invocation("asked")
        assert [call.function_call_id for call in await asked_invocation.pending()] == ["fc-1"]
        await approve_and_finish(asked_invocation, "fc-1")
