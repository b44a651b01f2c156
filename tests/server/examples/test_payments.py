"""The payments agent: the amount sets the number of approvers."""

import pytest

from tests.server.conftest import Serve
from tests.server.examples.conftest import answered
from tests.steps import catch_refusal, run, start_and_wait
from waystation.apps import App
from waystation.apps.registry import Registry
from waystation.client.agent_client import Invocation
from waystation.testing import AgentEnvironment


@pytest.fixture
def app(examples: Registry) -> App:
    """Return the agent with its demo model."""
    root = examples.roots["payments_agent"]
    assert root.demo_model is not None
    return App(name="payments", root_agent=root.agent.clone({"model": root.demo_model}))


async def start_pending(env: AgentEnvironment, message: str) -> Invocation:
    """Return an invocation with a pending call."""
    return await start_and_wait(env.client.start("payments_agent", message), "fc-1")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("Pay 100 to Rose for flowers", "100 euros are paid to Rose."),
        ("What is the balance?", "There are 12000 euros in the account."),
        ("Hello", "Tell me what to pay, as in: Pay 500 to Rose for the rent"),
    ],
)
async def test_small_payments_and_reading_need_no_approval(serve: Serve, app: App, message: str, text: str) -> None:
    """The rules of the agent exempt them."""
    assert (await run(serve(app), "payments_agent", message)).text == f"[demo model] {text}"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("Pay 500 to Rose for the rent", "500 euros are paid to Rose."),
        ("Freeze the account of Rose", "The account of Rose is frozen."),
    ],
)
async def test_one_approver_is_enough_and_must_comment(serve: Serve, app: App, message: str, text: str) -> None:
    """A rule and the tool's own policy require the comment."""
    async with serve(app) as env:
        invocation = await start_pending(env, message)
        assert await catch_refusal(invocation.approve(by="dana")) == "InvalidAnswer"
        await invocation.approve(by="dana", comment="as agreed")
        assert (await invocation.result()).text == f"[demo model] {text}"


async def test_a_large_payment_needs_two_approvers(serve: Serve, app: App) -> None:
    """The two approvers must be different and named; an approver who lowers the amount approves the new one."""
    async with serve(app) as env:
        invocation = await start_pending(env, "Pay 5000 to Rose for the roof")
        await invocation.approve(by="ann")
        assert await catch_refusal(invocation.approve(by="ann")) == "AlreadyAnswered"
        assert await catch_refusal(invocation.approve(by="dana")) == "NotAllowed"
        smaller = {"payee": "Rose", "amount": 500, "purpose": "the roof"}
        await invocation.answer("edit", args=smaller, by="cleo")
        await invocation.approve(by="ann")
        assert (await invocation.result()).text == "[demo model] 500 euros are paid to Rose."


@pytest.mark.slow
async def test_one_rejection_closes_the_call(serve: Serve, app: App) -> None:
    """One rejection closes the call, and the agent reports it."""
    async with serve(app) as env:
        invocation = await start_pending(env, "Pay 5000 to Rose for the roof")
        await invocation.reject(by="ben", comment="no roof")
        assert "rejected" in (await invocation.result()).text
        *_, last = answered((await invocation.log()).state.events)
        assert last["comment"] == "no roof"
