"""`waystation doctor`, `retry` and `give-up` show a held invocation to an operator and act on it."""

from collections.abc import Callable

import pytest

from tests.server.cli.conftest import Command
from tests.server.conftest import Serve, empty_server
from tests.steps import catch_failure, make_quick_settings, start_and_wait, wait_for_hold, wait_until
from waystation.agents import Agent
from waystation.core.errors import ModelOverloaded
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool


class Outage(ScriptedModel):
    """A model that is not available until the test ends the outage."""

    is_down = True

    async def generate(self, request: LlmRequest, *, on_text: Callable[[str], None] | None = None) -> LlmResponse:
        """Return the next reply, or raise."""
        if self.is_down:
            raise ModelOverloaded("Overloaded (503).")
        return await super().generate(request, on_text=on_text)


WHY = "the model is not available: Overloaded (503)."


@pytest.mark.slow
async def test_an_operator_finds_a_held_invocation_and_the_reason(serve: Serve, waystation: Command) -> None:
    """`doctor` exits with 1; `pending` and `events` name the same reason."""
    agent = Agent(name="asker", model=Outage())
    async with (
        empty_server() as server,
        serve(agent, server=server, verify=False, settings=make_quick_settings()) as env,
    ):
        invocation = await env.client.start("asker", "hi")
        await wait_for_hold(invocation)

        async def is_listed() -> bool:
            return [each.invocation_id async for each in env.client.held.each(searchable=True)] == [invocation.id]

        await wait_until(is_listed, "the held invocation in the list")
        examined = await waystation(env, "doctor", "--json", "--store", str(env.store))
        checks = {record["check"]: (record["ok"], record["text"]) for record in examined.records}
        assert examined.code == 1
        assert checks["held"][0] is False
        assert checks["held"][1].startswith(f"{invocation.id} since ")
        assert checks["held"][1].endswith(WHY)
        assert examined.records[-1]["fix"].startswith(f"waystation retry {invocation.id}")
        assert {name for name, (ok, _) in checks.items() if not ok} == {"held"}
        listed = await waystation(env, "pending")
        assert f"held: {invocation.id} since " in listed.out
        assert (listed.code, WHY in listed.out) == (0, True)
        assert WHY in (await waystation(env, "events", invocation.id)).out
        gave_up = await waystation(env, "give-up", invocation.id)
        assert (gave_up.code, gave_up.out.strip()) == (0, f"Gave up: {WHY}")
        await catch_failure(invocation)
        ended = await waystation(env, "events", invocation.id)
        assert "Overloaded (503). An operator gave up waiting." in ended.out


async def test_an_invocation_without_a_hold_is_neither_retried_nor_given_up(serve: Serve, waystation: Command) -> None:
    """The exit code is that of an unknown call; an unknown invocation is reported as such."""
    async with serve(Agent(name="asker", model=ScriptedModel(says("hi")))) as env:
        invocation = await env.client.start("asker", "hi")
        await invocation.result()
        for name in ("retry", "give-up"):
            ran = await waystation(env, name, invocation.id)
            assert (ran.code, f"Nothing in '{invocation.id}' is" in ran.err) == (6, True)
            assert (await waystation(env, name, "nothing-has-this-id")).code == 6


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


async def test_an_approver_is_warned_that_the_tool_of_a_call_was_removed(serve: Serve, waystation: Command) -> None:
    """The approval counts, and the call is held until a worker has the tool again."""
    tool = FunctionTool(pay, require_confirmation=True)
    before = Agent(name="treasurer", model=ScriptedModel(calls(("pay", {"amount": 5}))), tools=[tool])
    async with serve(before, verify=False) as env:
        invocation = await start_and_wait(env.client.start("treasurer", "pay"), "fc-1")
    after = Agent(name="treasurer", model=ScriptedModel())
    async with serve(after, verify=False, task_queue=env.client.task_queue) as env:
        ran = await waystation(env, "approve", invocation.id)
        assert ran.code == 0
        assert "The workers of agent 'treasurer' no longer have the tool 'pay'." in ran.err
        assert (await wait_for_hold(invocation))["reason"] == "tool_missing"
        await invocation.handle.terminate()
