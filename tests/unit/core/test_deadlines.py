"""Which deadlines and reminders have come at a moment, and in which order."""

from datetime import timedelta

from tests.unit.core.story import called, log_of, returned, said
from waystation.core import ApprovalPolicy, DeadlinePassed, ReminderDue


def test_a_deadline_has_passed_at_its_very_moment() -> None:
    """From that moment on no answer counts, so the call is closed then and does not wait for the next entry."""
    log = log_of(said("pay"), called("pay", gated=True, deadline_s=100))
    log.advance(1_100.9)
    assert [call.function_call_id for call in log.state.pending()] == ["fc-1"]
    log.advance(1_101)
    assert log.state.pending() == []


def test_what_came_while_no_worker_ran_is_recorded_in_the_order_of_its_times() -> None:
    """The reminder for one call comes before the deadline of another, whichever call was made first."""
    policy = ApprovalPolicy(reminders=(timedelta(seconds=50),))
    log = log_of(
        said("pay"),
        called("ask", kind="long_running", deadline_s=100),
        returned("fc-1", {"status": "pending"}, final=False),
        said("and then")[1:],
        called("pay", id="fc-2", gated=True, approval=policy, deadline_s=200),
    )
    before = log.length
    log.advance(2_000)
    assert [entry.body for entry in log.since(before)] == [
        ReminderDue("fc-2", 0),
        DeadlinePassed("fc-1"),
        DeadlinePassed("fc-2"),
    ]
