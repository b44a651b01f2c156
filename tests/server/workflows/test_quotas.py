"""Rate limits and budgets that all workers share delay or refuse invocations."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.agents import Till
from tests.server.conftest import Serve
from tests.steps import QUICK_SETTINGS, catch_failure, count_events, wait_for_hold
from waystation.activities.model_call import metered_model
from waystation.agents import Agent
from waystation.core.budget import ModelLimit, PeriodBudget, Price, Quotas, Usage
from waystation.core.contract import Settings
from waystation.core.errors import ModelOverloaded
from waystation.models import FallbackModel, LlmResponse
from waystation.testing import FunctionModel, ScriptedModel, calls, says

EVENTS = 11
"""The history events of an invocation with one model call, as without quotas."""
PRICES = {"*": Price(prompt=0, output=1_000)}


def settings(place: Path, *, max_cost: float | None = None, limits: tuple[ModelLimit, ...] = ()) -> Settings:
    """Return settings with quotas, and holds that are retried soon."""
    budgets = (PeriodBudget(period="month", max_cost=max_cost),) if max_cost else ()
    quotas = Quotas(store=str(place / "quotas.db"), limits=limits, budgets=budgets, prices=PRICES)
    return replace(QUICK_SETTINGS, quotas=quotas)


def payer(till: Till, *replies: LlmResponse) -> Agent:
    """Return an agent that pays."""
    return Agent(name="agent", model=ScriptedModel(*replies), tools=[till.pay])


async def test_a_budget_refuses_new_invocations_and_holds_those_in_progress(serve: Serve, tmp_path: Path) -> None:
    """A refused invocation lost nothing; one in progress continues when the budget is raised."""
    till, used = Till(), Usage(output_tokens=2_000, total_tokens=2_000)
    pays = calls(("pay", {"amount": 5}))
    pays.usage = used
    async with serve(payer(till, pays), settings=settings(tmp_path, max_cost=1.5)) as env:
        invocation, queue = await env.client.start("agent", "go"), env.client.task_queue
        hold = await wait_for_hold(invocation)
        assert (hold["reason"], till.paid) == ("budget_exhausted", [5])
        assert "cost 2.0000 of 1.5. The month ends at " in hold["message"]
        refused = await env.client.start("agent", "go")
        assert (await catch_failure(refused)).type == "BudgetExhausted"
    async with serve(
        payer(till, says("Paid.")), settings=settings(tmp_path, max_cost=9.0), task_queue=queue, adopt=[invocation]
    ) as env:
        assert await env.client.held.retry(invocation.id)
        assert (await invocation.result()).text == "Paid."
    assert till.paid == [5]


async def test_an_attempt_that_waits_for_a_rate_limit_is_not_a_model_call(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider asked one invocation to wait, so the other waits, too. It calls the model once and adds no event."""
    monkeypatch.setattr(metered_model, "MAX_WAIT_S", 0.0)
    replies: list[LlmResponse | Exception] = [
        ModelOverloaded("Busy.", status=429, retry_after_s=1.0),
        says("One."),
        says("Two."),
    ]
    agent = Agent(name="agent", model=FunctionModel(lambda _request: replies.pop(0)))
    async with serve(agent, settings=settings(tmp_path, limits=(ModelLimit(model="*"),))) as env:
        first = await env.client.start("agent", "go")
        while len(replies) == 3:
            await first.log()
        second = await env.client.start("agent", "go")
        results = [await first.result(), await second.result()]
        assert await count_events(first) == await count_events(second) == EVENTS
    assert (sorted(result.spent.model_calls for result in results if result.spent), replies) == ([1, 2], [])


async def test_a_fallback_model_does_not_wait_for_a_model_at_its_limit(serve: Serve, tmp_path: Path) -> None:
    """The next model answers, and the history names it."""
    first, second = ScriptedModel(says("One.")), ScriptedModel(says("Two."))
    first.model, second.model = "first", "second"
    agent = Agent(name="agent", model=FallbackModel([first, second]))
    limits = (ModelLimit(model="first", requests_per_minute=1),)
    async with serve(agent, settings=settings(tmp_path, limits=limits)) as env:
        texts = [(await env.client.run("agent", "go")).text for _ in range(2)]
    assert texts == ["One.", "Two."]
