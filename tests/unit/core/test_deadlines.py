"""Deadlines and reminders apply at their exact times and in order."""

from copy import deepcopy
from datetime import timedelta

from tests.unit.core.story import answered, log_of, model_calls, tool_returned, user_message
from waystation.core.approval import ApprovalPolicy
from waystation.core.log import DeadlinePassed, Log, ReminderDue, SignalClock, parse_ref


def test_a_deadline_passes_at_its_exact_time() -> None:
    """The call closes at that moment, without waiting for another entry."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True, deadline_s=100))
    log.advance(1_100.9)
    assert [call.function_call_id for call in log.state.pending()] == ["fc-1"]
    log.advance(1_101)
    assert log.state.pending() == []


def test_progress_does_not_move_the_deadline() -> None:
    """The deadline counts from the beginning of the wait."""
    ask = model_calls("ask", kind="long_running", deadline_s=100)
    log = log_of(user_message("ask"), ask, tool_returned("fc-1", None, final=False))
    before = log.state.pending()[0].deadline
    log.append(parse_ref("s1"), 1_050, answered("fc-1", "progress", response={"percent": 50}))
    assert log.state.pending()[0].deadline == before


def test_deadlines_and_reminders_are_recorded_in_time_order() -> None:
    """After an outage of the workers, a reminder for one call precedes a later deadline of another."""
    policy = ApprovalPolicy(reminders=(timedelta(seconds=50),))
    log = log_of(
        user_message("pay"),
        model_calls("ask", kind="long_running", deadline_s=100),
        tool_returned("fc-1", {"status": "pending"}, final=False),
        user_message("and then")[1:],
        model_calls("pay", id="fc-2", gated=True, approval=policy, deadline_s=200),
    )
    before = log.length
    log.advance(2_000)
    assert [entry.body for entry in log.since(before)] == [
        ReminderDue("fc-2", 0),
        DeadlinePassed("fc-1"),
        DeadlinePassed("fc-2"),
    ]


def deliver_signals(log: Log, times: list[float], now: float) -> tuple[list[float], set[str]]:
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


def test_signals_count_at_their_arrival_time() -> None:
    """Signals that arrived between two deadlines during an outage are processed between these deadlines."""
    log = log_of(
        user_message("pay"),
        model_calls("pay", gated=True, deadline_s=100),
        *user_message("x")[1:],
        model_calls("pay", id="fc-2", gated=True),
    )
    [first] = [call.deadline for call in log.state.open_calls() if call.id == "fc-1"]
    assert first == 1_101
    counted, _ = deliver_signals(log, [1_050.0, 1_100.9, 1_101.0, 1_500.0], now=2_000.0)
    assert [time < 1_101 for time in counted] == [True, True, False, False]
    assert counted[2:] == [2_000.0, 2_000.0]
    assert [entry.body for entry in log.entries][-1:] == [DeadlinePassed("fc-1")]


def test_two_markers_are_enough_for_any_number_of_signals() -> None:
    """The number of markers is bounded, so a flood of signals stays within the limits of a workflow task."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True, deadline_s=100))
    counted, marks = deliver_signals(log, [1_050.0] * 1_000 + [1_200.0] * 1_000, now=2_000.0)
    assert len(marks) == 2
    assert [time == 2_000.0 for time in counted] == [False] * 1_000 + [True] * 1_000


def test_without_markers_signals_count_at_the_time_of_their_task() -> None:
    """Histories from before the markers replay unchanged."""
    log = log_of(user_message("pay"), model_calls("pay", gated=True, deadline_s=100))
    assert SignalClock().advance(log, 1, 2_000.0, lambda *_: False, log.advance) == 2_000.0
    assert log.entries[-1].body == DeadlinePassed("fc-1")
