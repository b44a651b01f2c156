"""Which deadlines and reminders have come at a moment, and in which order."""

from copy import deepcopy
from datetime import timedelta

from tests.unit.core.story import called, log_of, returned, said
from waystation.core import ApprovalPolicy, DeadlinePassed, Log, ReminderDue, SignalClock


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


def arrivals(log: Log, times: list[float], now: float) -> tuple[list[float], set[str]]:
    """Deliver signals, in one workflow task at `now`, that arrived at these times.

    Return the time at which each one counts, and the patch markers. A replay with only these markers must agree.
    """
    replayed = deepcopy(log)
    marks = set[str]()
    clock, again = SignalClock(), SignalClock()
    counted = []
    for number, time in enumerate(times, 1):

        def observe(mark: str, deadline: float, late: bool, time: float = time) -> bool:
            if holds := (time >= deadline) is late:
                marks.add(mark)
            return holds

        counted.append(clock.advance(log, number, now, observe, log.advance))
        moment = again.advance(replayed, number, now, lambda mark, *_: mark in marks, replayed.advance)
        assert moment == counted[-1]
        assert replayed.entries == log.entries
    return counted, marks


def test_signals_count_from_the_time_at_which_they_arrived() -> None:
    """Two deadlines passed while no worker ran: each signal is processed between those that it arrived between."""
    log = log_of(
        said("pay"), called("pay", gated=True, deadline_s=100), *said("x")[1:], called("pay", id="fc-2", gated=True)
    )
    [first] = [call.deadline for call in log.state.open_calls() if call.id == "fc-1"]
    assert first == 1_101
    counted, _ = arrivals(log, [1_050.0, 1_100.9, 1_101.0, 1_500.0], now=2_000.0)
    assert [time < 1_101 for time in counted] == [True, True, False, False]
    assert counted[2:] == [2_000.0, 2_000.0]
    assert [entry.body for entry in log.entries][-1:] == [DeadlinePassed("fc-1")]


def test_however_many_signals_arrived_two_markers_tell_them_apart() -> None:
    """A marker for each signal would make a flood of signals exceed the limits of a workflow task."""
    log = log_of(said("pay"), called("pay", gated=True, deadline_s=100))
    counted, marks = arrivals(log, [1_050.0] * 1_000 + [1_200.0] * 1_000, now=2_000.0)
    assert len(marks) == 2
    assert [time == 2_000.0 for time in counted] == [False] * 1_000 + [True] * 1_000


def test_without_markers_signals_count_from_the_time_of_their_workflow_task() -> None:
    """Histories that were recorded before the markers existed replay as they did."""
    log = log_of(said("pay"), called("pay", gated=True, deadline_s=100))
    assert SignalClock().advance(log, 1, 2_000.0, lambda *_: False, log.advance) == 2_000.0
    assert log.entries[-1].body == DeadlinePassed("fc-1")
