"""The commands that answer calls: one call by its approval id or invocation, or many calls at once."""

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.agents import Till
from tests.server.approvals.asking import ask, asker, boss, listed, payer
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from tests.steps import start_and_get_call, start_and_wait, wait_for_calls, wait_until
from waystation.agents import Agent
from waystation.client.agent_client import Invocation
from waystation.core.approval import ApprovalPolicy
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool

COMMANDS: dict[str, tuple[str, ...]] = {
    "approve": (),
    "reject": (),
    "edit": ("--args", '{"amount": 1}'),
    "respond": ("--response", "{}"),
    "progress": ("--response", "{}"),
    "claim": (),
    "release": (),
    "waive": (),
    "cancel": (),
}
"""The commands, each with its required options."""


def gated(till: Till, **options: Any) -> Agent:
    """Return an agent with two calls: one that pays 5 with these options, and one that keeps the invocation open."""
    model = ScriptedModel(calls(("pay", {"amount": 5}), ("ask", {"purpose": "x"})), says("Done."))
    tools = [FunctionTool(till.pay, **options), LongRunningFunctionTool(ask)]
    return Agent(name="payer", model=model, tools=tools)


async def end(invocation: Invocation) -> None:
    """Answer the remaining pending calls."""
    for call in await invocation.pending():
        if call.tool == "ask":
            await invocation.reject(call.function_call_id)
    await invocation.result()


async def test_a_call_is_answered_by_its_approval_id(serve: Serve, waystation: Command) -> None:
    """A call can be answered without its invocation; the answer carries the digest of the pending call."""
    till = Till()
    async with serve(payer(till.pay)) as env:
        invocation, call = await start_and_get_call(env.client.start("payer", "go"), "fc-1")
        ran = await waystation(env, "approve", call.approval_id, "--by", "dana")
        assert (ran.code, ran.out) == (0, f"approved pay(amount=5) [fc-1] of {invocation.id}\n")
        await invocation.result()
        answer = (await invocation.log()).state.calls["fc-1"].answer
        assert answer is not None
        assert (answer.by, answer.digest) == ("dana", call.digest)


async def test_an_id_that_names_a_call_and_an_invocation_names_the_invocation(
    serve: Serve, waystation: Command
) -> None:
    """The ID of a called agent, which is also that of its caller's call, names the invocation."""
    till = Till()
    async with serve(boss(payer(till.pay))) as env:
        top = await env.client.start("boss", "go")
        await listed(env.client, 1, below=top.id)
        ran = await waystation(env, "approve", f"{top.id}/fc-1")
        assert (ran.code, "pay(amount=5)" in ran.out) == (0, True)
        await top.result()
        assert till.paid == [5]


@pytest.mark.slow
async def test_unknown_ids_exit_with_6(serve: Serve, waystation: Command) -> None:
    """An unknown invocation exits with 6, with or without a call; a missing id is a usage error."""
    async with serve(asker()) as env:
        for name in ("no-such", "no-such/fc-1"):
            for command, options in COMMANDS.items():
                assert (await waystation(env, command, name, *options)).code == 6, (command, name)
        assert (await waystation(env, "approve")).code == 2


async def test_every_command_exits_with_3_when_the_call_has_its_answer(serve: Serve, waystation: Command) -> None:
    """Hazard: a second decision. The second answer is refused with the first answer, and nothing changes."""
    till = Till()
    async with serve(gated(till, require_confirmation=True)) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1", "fc-2")
        assert (await waystation(env, "approve", f"{invocation.id}/fc-1", "--by", "dana")).code == 0
        await wait_for_calls(invocation, "fc-2")
        for command, options in COMMANDS.items():
            ran = await waystation(env, command, f"{invocation.id}/fc-1", *options)
            assert (ran.code, ran.out) == (3, ""), command
            assert "already answered by 'dana': approve" in ran.err
        await end(invocation)
        assert till.paid == [5]


@pytest.mark.slow
async def test_every_command_exits_with_4_when_the_deadline_has_passed(serve: Serve, waystation: Command) -> None:
    """No call is approved after its deadline."""
    till = Till()
    policy = ApprovalPolicy(deadline=timedelta(milliseconds=200))
    async with serve(gated(till, approval=policy)) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-2")
        await wait_until(lambda: _expired(invocation), "the deadline")
        for command, options in COMMANDS.items():
            ran = await waystation(env, command, f"{invocation.id}/fc-1", *options)
            assert (ran.code, ran.out) == (4, ""), command
        await end(invocation)
        assert till.paid == []


@pytest.mark.slow
async def test_every_command_exits_with_5_without_authorization(serve: Serve, waystation: Command) -> None:
    """A policy with approvers refuses the claim of anybody else."""
    till = Till()
    async with serve(gated(till, approval=ApprovalPolicy(approvers=("alice",)))) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1", "fc-2")
        for command, options in COMMANDS.items():
            ran = await waystation(env, command, f"{invocation.id}/fc-1", *options, "--by", "alice")
            assert (ran.code, ran.out) == (5, ""), (command, ran.err)
            assert "verified identity" in ran.err
        await invocation.cancel()
        await wait_until(lambda: _over(invocation), "the end")
        assert till.paid == []


async def _expired(invocation: Invocation) -> bool:
    return (await invocation.log()).state.calls["fc-1"].expired


async def _over(invocation: Invocation) -> bool:
    return (await invocation.log()).state.outcome.ended is not None


async def test_a_call_is_claimed_released_and_waived(serve: Serve, waystation: Command) -> None:
    """A claim is visible to others and keeps them from answering until the call is released."""
    till = Till()
    async with serve(gated(till, approval=ApprovalPolicy())) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1", "fc-2")
        id = f"{invocation.id}/fc-1"
        assert (await waystation(env, "claim", id, "--by", "dana")).out.startswith("claimed pay(amount=5)")
        assert "by dana" in (await waystation(env, "pending", invocation.id)).out
        assert (await waystation(env, "approve", id, "--by", "emil")).code == 5
        assert (await waystation(env, "release", id, "--by", "emil")).out.startswith("released")
        assert (await waystation(env, "waive", id, "--comment", "known")).out.startswith("waived the approval of")
        assert (await waystation(env, "cancel", f"{invocation.id}/fc-2")).out.startswith("canceled ask")
        await invocation.result()
        assert till.paid == [5]


async def test_many_calls_are_answered_at_once(serve: Serve, waystation: Command) -> None:
    """Each call gets its own record; without a terminal, --yes is required."""
    till = Till()
    async with serve(payer(till.pay, "cashier"), asker("cautious")) as env:
        started = [await env.client.start(agent, "go") for agent in ("cashier", "cashier", "cautious")]
        for invocation in started:
            await wait_for_calls(invocation, "fc-1")
        await listed(env.client, 2, agent="cashier")
        assert (await waystation(env, "approve", "--all", "--agent", "cashier")).code == 2
        assert till.paid == []
        ran = await waystation(env, "approve", "--all", "--agent", "cashier", "--yes", "--json")
        assert ran.code == 0
        assert {each["approval_id"] for each in ran.records} == {f"{each.id}/fc-1" for each in started[:2]}
        assert all(each["receipt"]["accepted"] for each in ran.records)
        for invocation in started[:2]:
            await invocation.result()
        assert till.paid == [5, 5]
        ran = await waystation(env, "edit", "--all", "--agent", "cautious", "--yes", "--args", "{}", "--json")
        assert (ran.code, ran.records[0]["error"]) == (2, "InvalidAnswer")
        await started[2].approve()
        await started[2].result()


@pytest.mark.parametrize(
    "arguments",
    [
        ("approve", "inv/fc-1", "--all"),
        ("approve", "inv/fc-1", "--yes"),
        ("approve", "--tool", "pay"),
        ("edit", "inv/fc-1", "--args", "[]"),
        ("respond", "inv/fc-1", "--response", "yes"),
    ],
)
async def test_contradicting_options_are_refused(serve: Serve, waystation: Command, arguments: tuple[str, ...]) -> None:
    """Contradicting options are refused before anything is sent."""
    async with serve(asker()) as env:
        assert (await waystation(env, *arguments)).code == 2


async def test_missing_options_are_named_without_a_terminal(serve: Serve, waystation: Command) -> None:
    """Without a terminal, and with --json, no command waits for input."""
    till = Till()
    async with serve(gated(till, approval=ApprovalPolicy(comment=True))) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1", "fc-2")
        for command, missing in (("edit", "--args and --comment"), ("approve", "--comment")):
            ran = await waystation(env, command, f"{invocation.id}/fc-1")
            assert (ran.code, f"requires {missing}" in ran.err) == (2, True)
        assert "requires --response" in (await waystation(env, "respond", f"{invocation.id}/fc-2")).err
        ran = await waystation(env, "approve", f"{invocation.id}/fc-1", "--comment", "fine", "--json")
        assert json.loads(ran.out)["accepted"] is True
        await end(invocation)
