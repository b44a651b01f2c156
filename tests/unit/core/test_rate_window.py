"""Rate limits: when a model call may start."""

import random

from waystation.core.budget import Ahead, RateLimit, RateState, find_wait, next_turn

MINUTE = RateLimit(requests=60)
TOKENS = RateLimit(tokens=1_000)
NOW = 1_800_000_000.0


def start(limit: RateLimit, *times: float, tokens: int = 0) -> RateState:
    """Return the state after calls that started at these times."""
    state = RateState()
    for time in times:
        state = state.started(limit, time, tokens, 1)
    return state


def test_no_window_contains_more_requests_than_the_limit() -> None:
    """Any 60 seconds contain at most 60 starts, and a busy limit is nearly used up."""
    draw, state, starts, now = random.Random(7), RateState(), list[float](), NOW
    while now < NOW + 600:
        if find_wait(MINUTE, state, now, 0):
            now += draw.expovariate(5)
        else:
            state, starts = state.started(MINUTE, now, 0, 1), [*starts, now]
    assert max(sum(first <= start < first + 60 for start in starts) for first in starts) == 60
    assert len(starts) > 0.94 * 600


def test_a_call_may_start_when_find_wait_said_so() -> None:
    """The wait ends when the oldest calls have left the window, which includes two seconds for late requests."""
    state = start(MINUTE, *(NOW + second for second in range(60)))
    wait_s = find_wait(MINUTE, state, NOW + 59.5, 0)
    assert 3.5 <= wait_s <= 4.5
    assert find_wait(MINUTE, state, NOW + 59.5 + wait_s - 0.01, 0) > 0
    assert find_wait(MINUTE, state, NOW + 59.5 + wait_s + 0.01, 0) == 0


def test_a_tenth_of_the_limit_may_start_within_a_slot() -> None:
    """The seventh of seven simultaneous calls waits until the next slot, which is a second long."""
    assert find_wait(MINUTE, start(MINUTE, *[NOW] * 5), NOW, 0) == 0
    assert 0 < find_wait(MINUTE, start(MINUTE, *[NOW] * 6), NOW, 0) <= 1
    assert 1 < find_wait(MINUTE, start(MINUTE, *[NOW] * 6), NOW, 0, Ahead(calls=6)) <= 2


def test_reserved_tokens_count_until_they_leave_the_window() -> None:
    """A call waits if its tokens and those of recent calls exceed the limit together."""
    state = start(TOKENS, NOW, NOW + 10, tokens=400)
    assert find_wait(TOKENS, state, NOW + 20, 200) == 0
    assert 42 <= find_wait(TOKENS, state, NOW + 20, 201) <= 43
    assert 52 <= find_wait(TOKENS, state, NOW + 20, 601) <= 53


def test_settled_tokens_replace_the_reserved_ones() -> None:
    """A call that used less than it reserved makes room for others, and one that used more takes room from them."""
    state = start(TOKENS, NOW, tokens=1_000)
    assert find_wait(TOKENS, state, NOW + 1, 100) > 0
    assert find_wait(TOKENS, state.settled(TOKENS, NOW, NOW, 1_000, 100), NOW + 1, 100) == 0
    more = start(TOKENS, NOW, tokens=100).settled(TOKENS, NOW, NOW, 100, 1_000)
    assert find_wait(TOKENS, more, NOW + 1, 100) > 0


def test_settling_a_call_that_has_left_the_window_changes_nothing() -> None:
    """A settlement after the window changes nothing, because the provider no longer counts the tokens."""
    state = start(TOKENS, NOW, tokens=100)
    assert state.settled(TOKENS, NOW - 70, NOW - 65, 100, 500) == state


def test_a_call_that_was_sent_late_leaves_the_window_later() -> None:
    """A call that was sent late also leaves the window later, because the provider received it late."""
    limit = RateLimit(requests=1)
    state = start(limit, NOW)
    late = state.settled(limit, NOW, NOW + 20, 0, 0)
    assert find_wait(limit, late, NOW + 30, 0) == find_wait(limit, state, NOW + 30, 0) + 20


def test_a_call_larger_than_the_limit_starts_when_the_window_is_empty() -> None:
    """A call above the limit starts when the window is empty, because it could never start otherwise."""
    assert find_wait(TOKENS, RateState(), NOW, 5_000) == 0
    assert find_wait(TOKENS, start(TOKENS, NOW, tokens=1), NOW + 1, 5_000) > 0


def test_calls_ahead_reserve_capacity() -> None:
    """A call that is not first waits for those ahead, if necessary for several windows."""
    state = start(MINUTE, *(NOW + second for second in range(60)))
    later = NOW + 60
    assert find_wait(MINUTE, state, later, 0, Ahead(calls=10)) > find_wait(MINUTE, state, later, 0) + 9
    assert 120 < find_wait(MINUTE, state, later, 0, Ahead(calls=150)) < 180
    assert find_wait(TOKENS, RateState(), NOW, 500, Ahead(calls=1, tokens=600)) > 0


def test_no_call_starts_while_the_provider_asks_to_wait() -> None:
    """A limit without numbers waits, too, and a shorter request does not shorten an earlier one."""
    state = RateState().blocked(NOW + 30).blocked(NOW + 5)
    assert find_wait(RateLimit(), state, NOW, 0) == 30
    assert find_wait(RateLimit(), state, NOW + 30, 0) == 0


def test_calls_of_different_keys_take_turns() -> None:
    """A new key is served after one call of each waiting key, however many calls another key has."""
    state = start(MINUTE, NOW)
    flood = [next_turn(state, None)]
    for _ in range(9):
        flood.append(next_turn(state, flood[-1]))
    assert flood == list(range(2, 12))
    assert next_turn(state, None) == 2
    # After five calls of the flood have started, a new key neither waits for the rest nor takes an earlier turn.
    assert next_turn(state.started(MINUTE, NOW, 0, 6), None) == 7
