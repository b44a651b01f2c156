"""Calls that run under an approval that was given to an earlier, identical call."""

from datetime import timedelta

from tests.unit.core.story import called, log_of, said
from waystation.core import ApprovalPolicy, Perform, next_step


def test_a_call_under_a_remembered_approval_carries_the_digest_of_what_was_approved() -> None:
    """The worker compares it with the call that it is about to run, as it does after a person's answer."""
    policy = ApprovalPolicy(remember=timedelta(hours=1))
    call = called("pay", gated=True, approval=policy, declared="schema", standing="earlier/fc-1")
    log = log_of(said("pay"), call)
    assert next_step(log) == Perform(("fc-1",))
    assert log.state.calls["fc-1"].approved_digest == log.state.calls["fc-1"].digest
