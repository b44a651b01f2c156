"""A restored log treats late and repeated answers like the original log."""

from datetime import timedelta

import pytest

from tests.unit.core.story import (
    answered,
    expired,
    log_of,
    model_called,
    model_calls,
    responses,
    tool_returned,
    user_message,
)
from waystation.core.approval import Answer, ApprovalPolicy, Escalation
from waystation.core.contract import InvocationResult
from waystation.core.errors import AlreadyAnswered, Expired
from waystation.core.log import Body, ChildReturned, Log, ReminderDue, parse_ref
from waystation.core.log.decision import check_answer
from waystation.core.projection import Snapshot

LATER_QUESTION: list[Body] = [model_called(), model_calls("pay", id="fc-2", gated=True)]
"""Entries that keep the invocation open after the end of `fc-1`."""


def restored(log: Log) -> Log:
    """Return the log with which the next run begins after continue-as-new."""
    assert log.state.input
    return Snapshot.model_validate_json(Snapshot.of(log).encode()).restored(log.invocation_id, log.state.input)


def approval(by: str) -> Answer:
    """Return an approval of fc-1."""
    return Answer(function_call_id="fc-1", action="approve", by=by)


def test_a_duplicate_of_an_answer_from_an_earlier_run_is_refused() -> None:
    """The refusal names the call and its approver."""
    log = log_of(
        user_message("pay"),
        model_calls("pay", gated=True),
        answered("fc-1", by="ann"),
        tool_returned("fc-1", {}),
        LATER_QUESTION,
    )
    with pytest.raises(AlreadyAnswered, match="already answered by 'ann': approve"):
        check_answer(restored(log), approval("ben"), now=1_010)


def test_an_answer_to_a_call_that_expired_in_an_earlier_run_is_too_late() -> None:
    """The answer is refused as expired and not as a duplicate, because there was no earlier answer."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True), expired("fc-1"), LATER_QUESTION)
    with pytest.raises(Expired):
        check_answer(restored(log), approval("ann"), now=1_010)


def test_an_approver_of_an_escalation_in_an_earlier_run_may_still_answer() -> None:
    """A second answer of that approver is refused as a duplicate, not as unauthorized."""
    later = Escalation(after=timedelta(seconds=1), to=("boss",))
    policy = ApprovalPolicy(approvers=("ann",), verified=False, escalation=(later,))
    log = log_of(
        user_message("pay"),
        model_calls("pay", gated=True, approval=policy),
        ReminderDue("fc-1", 0),
        answered("fc-1", by="boss"),
        tool_returned("fc-1", {}),
        LATER_QUESTION,
    )
    with pytest.raises(AlreadyAnswered):
        check_answer(restored(log), approval("boss"), now=1_010)


def test_an_unread_answer_reaches_the_model_in_the_next_run() -> None:
    """An answer that arrived while a called agent was in flight is kept when the run continues as new."""
    log = restored(
        log_of(
            user_message("go"),
            model_calls("ask", kind="long_running"),
            tool_returned("fc-1", {"status": "pending"}, final=False),
            model_called(),
            model_calls("helper", id="fc-2", kind="agent", agent="helper", detached=True),
            answered("fc-1"),
        )
    )
    log.append(parse_ref("fc-2"), 1_010, ChildReturned("fc-2", InvocationResult(text="done")))
    assert responses(log) == [("fc-2", {"result": "done"}), ("fc-1", {"status": "approved"})]
