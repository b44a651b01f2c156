"""An attacker polls the workflow queue, or runs a workflow of that type, so that a genuine worker runs the tool."""

import json
from typing import Any

import pytest

from tests.agents import Till
from tests.server.attacks.attackers import Attacker, activity_ended, agree, payer, pays, recorded_reply
from tests.server.conftest import Serve
from tests.steps import start_and_wait, wait_for_calls
from tests.unit.identity.conftest import Installation
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.payload import JsonObject
from waystation.testing import ScriptedModel, calls, says

MODEL: JsonObject = {"at": 0, "new": ["start"], "agent": "payer", "root": "payer", "number": 1, "phase": "enter"}
PAY: JsonObject = {"function_call_id": "fc-1", "args": {"amount": 5}, "root": "payer", "effect": "once"}
CONFIRMED: JsonObject = {"hint": "", "confirmed": True, "payload": None}


async def approved_input(serve: Serve, there: Installation) -> JsonObject:
    """Return the input of a genuine, approved call, which anyone may read. As a control, verify that it paid."""
    till = Till()
    async with serve(payer(till), identity=there.worker, verify=False) as env:
        invocation = await env.client.start("payer", "go")
        await agree(env, there, invocation)
        await invocation.result()
        assert till.paid == [5]
        scheduled = [e.activity_task_scheduled_event_attributes for e in (await invocation.history()).events]
        (genuine,) = (found.input.payloads[0] for found in scheduled if found.activity_id == "fc-1")
    return PAY | {"digest": json.loads(genuine.data)["digest"], "confirmation": CONFIRMED}


@pytest.mark.parametrize(
    ("approved", "forged"), [(False, False), (True, False), (False, True)], ids=["bare", "with digest", "forged reply"]
)
async def test_an_attackers_workflow_that_runs_the_tool_gets_nothing_paid(
    serve: Serve, there: Installation, attacker: Attacker, approved: bool, forged: bool
) -> None:
    """The attacker's workflow has the right type, and the right history up to the approval."""
    till, pay = Till(), await approved_input(serve, there) if approved else PAY
    async with serve(payer(till), identity=there.worker, verify=False) as env:
        queue = env.client.task_queue
        steps = [
            {"type": "call_model", "id": "m1", "input": MODEL, "task_queue": attacker.task_queue if forged else queue},
            {"type": "payer.pay", "id": "fc-1", "task_queue": queue}
            | {"input": pay | {"at": 1, "new": [">1", "m1.{mark}"]}},
        ]
        plan = {"activities": steps, "agent": "payer", "message": "go"}
        handle = await attacker.script("AgentInvocation", plan)
        if forged:
            reply = {"content": {"role": "model", "parts": [_part()]}, "calls": [{"id": "fc-1"}], "mark": "abc123"}
            await attacker.lie(attacker.task_queue, "call_model", reply)
        await handle.result()
    assert till.paid == []


async def test_rules_of_another_tree_do_not_decide_for_a_call(
    serve: Serve, there: Installation, attacker: Attacker
) -> None:
    """A kiosk has an agent of the same name, which may pay small amounts without approval."""
    till, small_till = Till(), Till()
    kiosk = Agent(
        name="kiosk", model=pays(), sub_agents=[payer(small_till, require_confirmation=lambda amount: amount > 10)]
    )
    async with serve(payer(till), kiosk, identity=there.worker, verify=False) as env:
        queue = env.client.task_queue
        steps = [
            {"type": "call_model", "id": "m1", "input": MODEL | {"root": "kiosk"}, "task_queue": queue},
            {"type": "payer.pay", "id": "fc-1", "task_queue": queue}
            | {"input": PAY | {"at": 1, "new": [">1", "m1.{mark}"]}},
        ]
        plan = {"activities": steps, "agent": "payer", "message": "go"}
        await (await attacker.script("AgentInvocation", plan)).result()
    assert till.paid == []


def _part() -> JsonObject:
    return {"functionCall": {"name": "pay", "args": {"amount": 5}, "id": "fc-1"}}


@pytest.mark.parametrize("approved", [False, True], ids=["no digest", "digest"])
async def test_a_pending_call_does_not_run_at_an_attackers_command(
    serve: Serve, there: Installation, attacker: Attacker, approved: bool
) -> None:
    """The invocation and its history are genuine, except for one command."""
    till, pay = Till(), await approved_input(serve, there) if approved else PAY
    shared: dict[str, Any] = {"identity": there.worker, "verify": False}
    async with serve(payer(till), **shared) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        mark = (await recorded_reply(invocation))["mark"]
    queue = env.client.task_queue
    async with serve(payer(till), workflows=False, task_queue=queue, **shared):
        await _command(attacker, invocation, queue, pay | {"at": 1, "new": [">1", f"m1.{mark}"]})
    assert till.paid == []


async def test_an_approval_is_not_spent_again_at_an_attackers_command(
    serve: Serve, there: Installation, attacker: Attacker
) -> None:
    """The genuine input of a call that has run does not run it again."""
    till, shared = Till(), {"identity": there.worker, "verify": False}
    twice = [calls(("pay", {"amount": amount})) for amount in (5, 6)]
    agent = payer(till, model=ScriptedModel(*twice, says("Done.")), effect="once")
    async with serve(agent, **shared) as env:
        invocation = await env.client.start("payer", "go")
        await agree(env, there, invocation)
        await wait_for_calls(invocation, "fc-2")
        assert till.paid == [5]
        scheduled = [e.activity_task_scheduled_event_attributes for e in (await invocation.history()).events]
        (genuine,) = (found.input.payloads[0] for found in scheduled if found.activity_id == "fc-1")
    queue = env.client.task_queue
    async with serve(agent, workflows=False, task_queue=queue, **shared):
        await _command(attacker, invocation, queue, json.loads(genuine.data))
    assert till.paid == [5]


async def _command(attacker: Attacker, invocation: Invocation, queue: str, params: JsonObject) -> None:
    await attacker.temporal.get_workflow_handle(invocation.id).signal("wake up")
    await attacker.command(queue, "stolen", "payer.pay", params)
    await activity_ended(invocation, "stolen")
