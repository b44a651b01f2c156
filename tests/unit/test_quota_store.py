"""Workers reserve model calls in a store, in a file or in PostgreSQL."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from waystation.activities.contexts import Contexts
from waystation.activities.model_call.metered_model import Meters
from waystation.core.budget import Amounts, ModelLimit, PeriodBudget, Quotas, RateLimit
from waystation.core.contract import AgentSpec
from waystation.core.conversation import Conversation
from waystation.core.errors import BudgetExhausted, StoreFailed
from waystation.core.log import AgentRun, Log
from waystation.models import FallbackModel, LlmRequest
from waystation.storage import MeteredCall, QuotaStore, Reservation
from waystation.storage.quota_store import KEEP_S
from waystation.testing import FunctionModel, says

DAILY = PeriodBudget(period="day", max_cost=1.0)
HOURLY = RateLimit(requests=1_000, window_s=3_600)
CHILD = """
import asyncio, sys
from waystation.core.budget import Amounts, RateLimit
from waystation.storage import MeteredCall, QuotaStore
store = QuotaStore(sys.argv[1])
async def main():
    for number in range(20):
        call = MeteredCall(id=f"{sys.argv[2]}/{number}", sender="", tenant="acme", user="ann", name="m", counts=True,
                           rate=RateLimit(requests=1_000, window_s=3_600), tokens=10, cost=0.5)
        reservation = await store.reserve(call)
        await store.settle(reservation, Amounts(tokens=5, cost=0.25))
asyncio.run(main())
"""

KILLED = """
import asyncio, sys, time
from waystation.storage import MeteredCall, QuotaStore
call = MeteredCall(id="a", sender="", tenant="acme", user="ann", tokens=10, cost=0.5, counts=True)
asyncio.run(QuotaStore(sys.argv[1]).reserve(call))
print("reserved", flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the location of the store."""
    return str(tmp_path / "quotas.db") if request.param == "file" else request.getfixturevalue("postgres")


def call(id: str, **fields: Any) -> MeteredCall:
    """Return a call that is expected to use ten tokens."""
    defaults: dict[str, Any] = {"sender": "", "tenant": "acme", "user": "ann", "tokens": 10, "cost": 0.4}
    return MeteredCall(id=id, **{**defaults, **fields})


async def reserve(store: QuotaStore, call: MeteredCall) -> Reservation:
    """Reserve a call that may start now."""
    reservation = await store.reserve(call)
    assert isinstance(reservation, Reservation)
    return reservation


async def spent(store: QuotaStore) -> dict[tuple[str, str | None], Amounts]:
    """Return today's usage of each tenant and user."""
    return {
        (row.tenant, row.user): Amounts(row.calls, row.tokens, round(row.cost, 6))
        for row in await store.list_spending()
        if len(row.period) == len("2026-11-23")
    }


@pytest.mark.slow
def test_processes_share_the_store(place: str) -> None:
    """Four processes that create the tables at the same time lose no call."""
    running = [subprocess.Popen([sys.executable, "-c", CHILD, place, name], cwd=ROOT) for name in "abcd"]
    assert [process.wait() for process in running] == [0] * 4
    assert asyncio.run(spent(QuotaStore(place))) == dict.fromkeys(
        [("acme", None), ("acme", "ann")], Amounts(80, 400, 20.0)
    )


def test_a_killed_process_leaves_its_reservation(place: str) -> None:
    """The reservation of a killed process stays, and its lock does not."""
    process = subprocess.Popen([sys.executable, "-c", KILLED, place], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"reserved\n"
    process.kill()
    process.wait()
    process.stdout.close()
    store = QuotaStore(place)
    assert asyncio.run(spent(store))["acme", "ann"] == Amounts(1, 10, 0.5)
    used_up = PeriodBudget(user="*", period="month", max_cost=0.5)
    with pytest.raises(BudgetExhausted):
        asyncio.run(store.reserve(call("again", counts=True, budgets=(used_up,))))


async def test_the_usage_of_a_call_replaces_its_reservation(place: str) -> None:
    """Another call in flight still counts as reserved."""
    store = QuotaStore(place)
    first, _ = await reserve(store, call("a", counts=True)), await reserve(store, call("b", counts=True))
    await store.settle(first, Amounts(tokens=3, cost=0.1))
    assert (await spent(store))["acme", "ann"] == Amounts(2, 13, 0.5)


async def test_a_call_with_an_unknown_outcome_counts_as_reserved(place: str) -> None:
    """A call without reported usage counts as reserved."""
    store = QuotaStore(place)
    await store.settle(await reserve(store, call("a", counts=True)), None)
    assert (await spent(store))["acme", "ann"] == Amounts(1, 10, 0.4)


async def test_a_budget_may_be_exceeded_only_by_calls_in_flight(place: str) -> None:
    """Simultaneous calls see each other's reservations; a refused one leaves no trace."""
    store = QuotaStore(place)
    calls = [call(str(number), counts=True, budgets=(DAILY,)) for number in range(20)]
    results = await asyncio.gather(*map(store.reserve, calls), return_exceptions=True)
    refused = [result for result in results if isinstance(result, BudgetExhausted)]
    assert len(refused) == 17
    assert "The budget of tenant 'acme' for " in str(refused[0])
    assert "cost 1.2000 of 1. The day ends at " in str(refused[0])
    assert 0 < refused[0].retry_after_s <= 86_400
    assert (await spent(store))["acme", None] == Amounts(3, 30, 1.2)


async def test_users_and_tenants_have_separate_budgets(place: str) -> None:
    """A user's budget does not count other users, nor users with the same ID in other tenants."""
    store, budget = QuotaStore(place), PeriodBudget(user="*", period="month", max_total_tokens=10)
    await reserve(store, call("a", counts=True, budgets=(budget,)))
    await reserve(store, call("b", counts=True, budgets=(budget,), user="bob"))
    await reserve(store, call("c", counts=True, budgets=(budget,), tenant="globex"))
    with pytest.raises(BudgetExhausted, match="The budget of the user for"):
        await store.reserve(call("d", counts=True, budgets=(budget,)))


async def test_retry_after_stops_all_calls_under_the_limit(place: str) -> None:
    """All calls under the limit wait, and other limits are not affected."""
    store = QuotaStore(place)
    await store.settle(await reserve(store, call("a", name="m")), None, retry_after_s=30.0)
    wait_s = await QuotaStore(place).reserve(call("b", name="m"))
    assert isinstance(wait_s, float)
    assert 15 <= wait_s <= 30
    await reserve(store, call("b", name="other"))


async def test_waiting_calls_start_in_turns_of_their_senders(place: str) -> None:
    """A call of a new sender starts after one call of each other sender, and before the other waiting calls."""
    store, rate = QuotaStore(place), RateLimit(requests=1, window_s=6.0)
    await reserve(store, call("first", name="m", rate=rate))
    waits = [await store.reserve(call(f"flood-{n}", name="m", rate=rate, sender="flood")) for n in range(4)]
    late = await store.reserve(call("late", name="m", rate=rate, sender="late"))
    assert isinstance(late, float)
    assert isinstance(waits[2], float)
    assert late < waits[2]


async def test_calls_that_pass_others_do_not_delay_a_new_sender(place: str) -> None:
    """A flood passes its own waiting calls that will not retry soon; a new sender still starts before those."""
    store, rate = QuotaStore(place), RateLimit(requests=1)
    await reserve(store, call("first", name="m", rate=rate))
    for number in range(5):
        await store.reserve(call(f"flood-{number}", name="m", rate=rate, sender="flood"))
    await reserve(store, call("passes", name="m", rate=RateLimit(requests=100), sender="flood"))
    late = await store.reserve(call("late", name="m", rate=rate, sender="late"))
    waiting = await store.reserve(call("flood-2", name="m", rate=rate, sender="flood"))
    assert isinstance(late, float)
    assert isinstance(waiting, float)
    assert late < waiting


async def test_earlier_attempts_of_a_call_that_waited_are_reported(place: str) -> None:
    """Earlier attempts that waited do not count as model calls, and the place in the queue is released."""
    store, free = QuotaStore(place), RateLimit(requests=90)
    waiting = call("b", name="m", rate=RateLimit(requests=1), attempt=2)
    await reserve(store, call("a", name="m", rate=RateLimit(requests=1)))
    assert isinstance(await store.reserve(waiting), float)
    assert isinstance(await store.reserve(replace(waiting, attempt=3)), float)
    assert (await reserve(store, replace(waiting, attempt=4, rate=free))).waits == 2
    assert (await reserve(store, replace(waiting, attempt=5, rate=HOURLY))).waits == 0


async def test_a_new_month_deletes_only_the_tenants_own_old_counts(tmp_path: Path) -> None:
    """A new month deletes only rows of the tenant, because other transactions may lock the others."""
    now = 1_700_000_000.0
    store = QuotaStore(tmp_path / "quotas.db", clock=lambda: now)
    for tenant in ("acme", "globex"):
        await reserve(store, call(tenant, tenant=tenant, counts=True))
    now += KEEP_S + 40 * 86_400
    await reserve(store, call("later", tenant="acme", counts=True))
    assert [row.tenant for row in await store.list_spending("2023-11")] == ["globex"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("per_minute", [12, 30])
async def test_a_fallback_model_uses_the_whole_limit_of_its_first_model(tmp_path: Path, per_minute: int) -> None:
    """Calls that the second model answers do not keep a place in front of later calls."""
    now = 1_700_000_000.0
    quotas = Quotas(limits=(ModelLimit(model="first", requests_per_minute=6),))
    meters = Meters(quotas)
    meters.store = QuotaStore(tmp_path / "quotas.db", clock=lambda: now)
    models = [FunctionModel(lambda _request: says("yes")), FunctionModel(lambda _request: says("yes"))]
    models[0].model, models[1].model = "first", "second"
    fallback, run = FallbackModel(models), AgentRun(0, AgentSpec(name="guide"), None, None, entered_at=0)
    answered = [0] * 5
    for number in range(5 * per_minute):
        contexts = Contexts(Conversation(Log(f"i-{number}")), run, {})
        response = await meters.of(contexts).wrap(fallback).generate(LlmRequest(model="first", contents=[]))
        answered[number // per_minute] += response.model == "first"
        now += 60 / per_minute
    assert answered == [6] * 5


async def test_an_unavailable_store_raises_store_failed(tmp_path: Path) -> None:
    """An unavailable store raises StoreFailed, so the model call is held, as with all stores."""
    with pytest.raises(StoreFailed):
        await QuotaStore(tmp_path).reserve(call("a"))
    with pytest.raises(StoreFailed):
        await QuotaStore("postgresql://nobody@127.0.0.1:1/none").reserve(call("a"))
