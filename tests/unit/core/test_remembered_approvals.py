"""Calls that run under an approval that was given to an earlier, identical call."""

from datetime import timedelta

import pytest

from tests.unit.core.story import called, log_of, said
from waystation.core import ApprovalPolicy, Perform, StandingApproval, digest, find_covering_approval, next_step


def test_a_call_under_a_remembered_approval_carries_the_digest_of_what_was_approved() -> None:
    """The worker compares it with the call that it is about to run, as it does after a person's answer."""
    policy = ApprovalPolicy(remember=timedelta(hours=1))
    call = called("pay", gated=True, approval=policy, declared="schema", standing="earlier/fc-1")
    log = log_of(said("pay"), call)
    assert next_step(log) == Perform(("fc-1",))
    assert log.state.calls["fc-1"].approved_digest == log.state.calls["fc-1"].digest


@pytest.mark.parametrize(("approved", "called_with", "covers"), [(1, 1, True), (1, 1.0, False), (1, True, False)])
def test_a_number_is_not_covered_by_another_that_python_calls_equal(
    approved: object, called_with: object, covers: bool
) -> None:
    """`1`, `1.0` and `true` are different JSON, and tools may treat them differently."""
    policy = ApprovalPolicy(remember=timedelta(hours=1))
    bound_to = digest({"schema": "schema", "policy": policy.record()})
    known = StandingApproval(
        agent="a", tool="pay", args={"n": approved}, bound_to=bound_to, by="ann", until=2_000, origin="i/fc-1"
    )
    found = find_covering_approval(
        [known], agent="a", tool="pay", args={"n": called_with}, declared="schema", policy=policy
    )
    assert (found is not None) is covers
