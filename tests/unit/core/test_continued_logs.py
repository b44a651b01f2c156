"""A log that was restored from a snapshot treats late and repeated answers as the whole log does."""

from datetime import timedelta

import pytest

from tests.unit.core.story import answered, asked_model, called, expired, log_of, responses, returned, said
from waystation.core import (
    AlreadyAnswered,
    Answer,
    ApprovalPolicy,
    Body,
    ChildReturned,
    Escalation,
    Expired,
    InvocationResult,
    Log,
    ReminderDue,
    Snapshot,
    check_answer,
    parse_ref,
)

LATER_QUESTION: list[Body] = [asked_model(), called("pay", id="fc-2", gated=True)]
"""Keeps the invocation open, after `fc-1` was settled."""


def restored(log: Log) -> Log:
    """Return the log with which the next run begins when this one continues as new."""
    assert log.state.input
    return Snapshot.model_validate_json(Snapshot.of(log).encode()).restored(log.invocation_id, log.state.input)


def approval(by: str) -> Answer:
    """Return an approval of fc-1."""
    return Answer(function_call_id="fc-1", action="approve", by=by)


def test_a_second_answer_learns_of_the_first_one_that_an_earlier_run_recorded() -> None:
    """The call is known, and so is who answered it."""
    log = log_of(
        said("pay"), called("pay", gated=True), answered("fc-1", by="ann"), returned("fc-1", {}), LATER_QUESTION
    )
    with pytest.raises(AlreadyAnswered, match="already answered by 'ann': approve"):
        check_answer(restored(log), approval("ben"), now=1_010)


def test_an_answer_to_a_call_that_expired_in_an_earlier_run_is_too_late() -> None:
    """It is refused as expired, not as a second answer: nobody had answered before."""
    log = log_of(said("pay"), called("pay", gated=True), expired("fc-1"), LATER_QUESTION)
    with pytest.raises(Expired):
        check_answer(restored(log), approval("ann"), now=1_010)


def test_an_approver_who_was_asked_by_an_escalation_in_an_earlier_run_may_still_answer() -> None:
    """A second answer of theirs is refused as a duplicate, not because of who they are."""
    later = Escalation(after=timedelta(seconds=1), to=("boss",))
    policy = ApprovalPolicy(approvers=("ann",), verified=False, escalation=(later,))
    log = log_of(
        said("pay"),
        called("pay", gated=True, approval=policy),
        ReminderDue("fc-1", 0),
        answered("fc-1", by="boss"),
        returned("fc-1", {}),
        LATER_QUESTION,
    )
    with pytest.raises(AlreadyAnswered):
        check_answer(restored(log), approval("boss"), now=1_010)


def test_an_answer_that_the_model_has_not_read_yet_reaches_it_in_the_next_run() -> None:
    """It came while a called agent was at work, which goes on beyond the end of the run."""
    log = restored(
        log_of(
            said("go"),
            called("ask", kind="long_running"),
            returned("fc-1", {"status": "pending"}, final=False),
            asked_model(),
            called("helper", id="fc-2", kind="agent", agent="helper", detached=True),
            answered("fc-1"),
        )
    )
    log.append(parse_ref("fc-2"), 1_010, ChildReturned("fc-2", InvocationResult(text="done")))
    assert responses(log) == [("fc-2", {"result": "done"}), ("fc-1", {"status": "approved"})]
