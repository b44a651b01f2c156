"""Decides, without a server, whether an approved call may have run before."""

from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from waystation.activities import LogCache
from waystation.activities.proofs import CLOCK_SKEW_S, ProofFactory, Proofs, may_lack_runs
from waystation.core.approval import TOKEN_LIFETIME_S
from waystation.core.contract import Call
from waystation.core.log import CallState
from waystation.worker_keys import WorkerKeys

START, LATER = 1_000_000.0, 1_000_000.0 + TOKEN_LIFETIME_S + CLOCK_SKEW_S


@pytest.mark.parametrize(
    ("known", "approved_at", "lacking"),
    [
        ({"first": START}, START, False),
        ({"first": START, "second": START + 5}, START, False),
        ({"second": START}, START + 5, True),
        ({"third": START + 5, "second": START}, LATER - 1, True),
        ({"third": START + 5, "second": START}, LATER, False),
    ],
    ids=["the first run", "all runs", "the first is gone", "a token may be valid", "all tokens have expired"],
)
def test_a_deleted_run_may_have_used_tokens_until_they_expire(
    known: dict[str, float], approved_at: float, lacking: bool
) -> None:
    """Tokens are valid for a day; the first run of an invocation is the first to be deleted."""
    assert may_lack_runs(known, "first", approved_at) is lacking


def test_a_decision_by_the_rules_of_another_tree_does_not_count() -> None:
    """A forged workflow cannot use a decision that was made under the rules of another root agent."""
    proofs = Proofs(WorkerKeys.generate(), "default", "pay-1", "first")
    call = CallState(proofs.signed_call(Call(id="fc-1"), "kiosk", "payer", "pay", {}), agent="payer", name="pay")
    assert (proofs.is_authentic(call, "kiosk"), proofs.is_authentic(call, "payer")) == (True, False)


async def test_another_attempt_of_an_activity_may_repeat_its_call() -> None:
    """Waystation schedules such calls with one attempt, but anyone can reset an activity."""
    env = ActivityEnvironment()
    env.info = replace(env.info, current_attempt_scheduled_time=env.info.scheduled_time + timedelta(seconds=1))
    keys, client = WorkerKeys.generate(), await Client.connect("127.0.0.1:1", lazy=True)
    factory = ProofFactory(keys, LogCache(client), client)
    proofs = Proofs(keys, "default", "pay-1", "first")
    assert await env.run(factory.may_have_run, CallState(Call(id="fc-1")), proofs)
