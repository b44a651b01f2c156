"""An operator resets an invocation to a moment before an answer."""

import pytest
from temporalio.api.enums.v1 import ResetReapplyExcludeType

from tests.server.conftest import Serve
from tests.steps import approve_and_finish, reject_and_finish, reset_run, start_and_wait, wait_for_calls
from waystation.agents import Agent
from waystation.approvers.audit import gather_invocation
from waystation.client.agent_client import Invocation
from waystation.testing import AgentEnvironment, ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool
from waystation.tools.tool_context import ToolContext

ANSWERS = (
    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
)


class Cashier:
    """A till that counts payments once per key, like a provider with idempotency keys."""

    def __init__(self) -> None:
        self.paid: dict[str, int] = {}
        self.runs = 0

    def pay(self, amount: int, tool_context: ToolContext) -> dict[str, int]:
        """Pay."""
        self.runs += 1
        self.paid[tool_context.idempotency_key] = amount
        return {"paid": amount}


async def reset(
    env: AgentEnvironment, invocation: Invocation, task: int, *, without: tuple[int, ...] = ()
) -> Invocation:
    """Reset an invocation to its `task`th workflow task.

    Its call is pending after the second, and the third processes the answer; `without` lists events that are not sent
    again.
    """
    await reset_run(env.temporal, await invocation.history(), task, without=without)
    return env.client.invocation(invocation.id)


def payer(cashier: Cashier) -> Agent:
    """Return an agent that pays 5 after a confirmation."""
    model = ScriptedModel(calls(("pay", {"amount": 5})), says("Paid."), says("Paid."), says("Paid."))
    return Agent(name="payer", model=model, tools=[FunctionTool(cashier.pay, require_confirmation=True)])


@pytest.mark.parametrize("signal", [True, False])
async def test_an_answer_that_a_reset_repeats_has_one_effect(serve: Serve, signal: bool) -> None:
    """The tool runs again with the same idempotency key without a run ID, so the provider recognizes it."""
    cashier = Cashier()
    async with serve(payer(cashier), tasks_may_fail=True) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        await approve_and_finish(invocation, "fc-1", signal=signal)
        reset_invocation = await reset(env, invocation, 3)
        assert (await reset_invocation.result()).text == "Paid."
    assert cashier.runs == 2
    assert cashier.paid == {f"{invocation.id}/fc-1": 5}


@pytest.mark.parametrize("signal", [True, False])
async def test_an_answer_that_precedes_its_question_does_not_count(serve: Serve, signal: bool) -> None:
    """The server repeats an answer before the run knows the call, so it is ignored, and the approver is asked again."""
    cashier = Cashier()
    async with serve(payer(cashier), tasks_may_fail=True) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        await approve_and_finish(invocation, "fc-1", signal=signal)
        reset_invocation = await reset(env, invocation, 2)
        await wait_for_calls(reset_invocation, "fc-1")
        assert cashier.runs == 1
        await reject_and_finish(reset_invocation, "fc-1")
    assert cashier.runs == 1


async def test_a_reset_may_leave_answers_out(serve: Serve) -> None:
    """`temporal workflow reset --reapply-exclude All` does so, and the approver is asked again."""
    cashier = Cashier()
    async with serve(payer(cashier), tasks_may_fail=True) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        await approve_and_finish(invocation, "fc-1")
        reset_invocation = await reset(env, invocation, 3, without=ANSWERS)
        await wait_for_calls(reset_invocation, "fc-1")
        assert cashier.runs == 1
        await reject_and_finish(reset_invocation, "fc-1")
    assert cashier.runs == 1


async def test_a_reader_follows_an_invocation_over_a_reset(serve: Serve) -> None:
    """A reader continues with the new run, because only the old run was terminated."""
    async with serve(payer(Cashier()), tasks_may_fail=True) as env:
        invocation = await env.client.start("payer", "go")
        was_reset = False
        async for log in invocation.follow():
            if log.state.pending() and not was_reset:
                reset_invocation, was_reset = await reset(env, invocation, 2), True
                await wait_for_calls(reset_invocation, "fc-1")
                await reset_invocation.approve("fc-1")
        assert log.state.outcome.ended is not None
        assert log.state.result().text == "Paid."


async def test_an_audit_names_the_reset(serve: Serve) -> None:
    """An audit names the reset, because the history of the new run alone would look complete."""
    async with serve(payer(Cashier()), tasks_may_fail=True) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        before = (await invocation.handle.describe()).run_id
        reset_invocation = await reset(env, invocation, 2)
        await wait_for_calls(reset_invocation, "fc-1")
        await approve_and_finish(reset_invocation, "fc-1")
        account = (await gather_invocation(env.client, invocation.id)).by_invocation[invocation.id]
        assert [entry["run_id"] for entry in account if entry["kind"] == "reset"] == [before]
        assert [entry["kind"] for entry in account][:3] == ["began", "reset", "requested"]
