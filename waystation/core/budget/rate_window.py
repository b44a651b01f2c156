"""Rate limits: when a model call may start, given the calls of the last minute and the calls that wait.

Pure: a store passes the recorded state and the time, and records the state that it gets back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from waystation.core.payload import Recorded

SLOTS = 60
"""Number of slots into which the window is divided. The calls that start in one slot leave the window together."""
BURST = 10
"""A slot admits at most a tenth of the limit. Otherwise, the requests of one full window could reach the provider late
and those of the next one early, so that the provider would receive both within the same minute."""

LATE_SLOTS = 2
"""A request may reach the provider this many slots after the call has started, for example if the worker is busy. The
slots of the window are counted for this much longer."""


@dataclass(frozen=True, kw_only=True)
class RateLimit:
    """The number of requests and tokens in any window, or None for no limit."""

    requests: int | None = None
    tokens: int | None = None
    window_s: float = 60.0

    @property
    def slot_s(self) -> float:
        """The length of a slot in seconds."""
        return self.window_s / SLOTS


class Slot(NamedTuple):
    """The calls that started in one slot."""

    number: int
    """The number of slots since 1970."""
    requests: int
    tokens: int
    """The tokens that these calls reserved or, once they have ended, used."""


class RateState(Recorded):
    """The recent calls under one limit."""

    slots: tuple[Slot, ...] = ()
    blocked_until: float = 0.0
    """The time until which the provider asked not to send requests, in seconds since 1970."""
    turn: int = 0
    """The highest turn up to which calls have started; see `next_turn`."""

    def started(self, limit: RateLimit, now: float, tokens: int, turn: int) -> "RateState":
        """Return the state after a call has started. Slots that have left the window are removed."""
        number, recent = _slot_number(limit, now), _recent(limit, self, now)
        update = {"slots": _add(recent, Slot(number, 1, tokens)), "turn": max(self.turn, turn)}
        return self.model_copy(update=update)

    def settled(self, limit: RateLimit, at: float, sent_at: float, reserved: int, used: int) -> "RateState":
        """Return the state after a call that started at `at` was sent at `sent_at`, and has ended.

        `reserved` and `used` are tokens.
        """
        old, new = int(at // limit.slot_s), int(sent_at // limit.slot_s)
        if all(slot.number != old for slot in self.slots):  # it has left the window
            return self
        slots = _add(_add(self.slots, Slot(old, -1, -reserved)), Slot(new, 1, used))
        return self.model_copy(update={"slots": slots})

    def blocked(self, until: float) -> "RateState":
        """Return the state in which no call starts before `until`, nor before an earlier request of the provider."""
        return self.model_copy(update={"blocked_until": max(self.blocked_until, until)})


class Ahead(NamedTuple):
    """The waiting calls that start before another call."""

    calls: int = 0
    tokens: int = 0


NONE_AHEAD = Ahead()


def find_wait(limit: RateLimit, state: RateState, now: float, tokens: int, ahead: Ahead = NONE_AHEAD) -> float:
    """Return after how many seconds a call that reserves `tokens` may start. 0.0 means that it may start now.

    A call with more tokens than the limit starts as soon as no other tokens are in the window.
    """
    slots = _recent(limit, state, now)
    waits = [0.0, state.blocked_until - now]
    if limit.requests:
        requests = [(_leaves(limit, slot) - now, slot.requests) for slot in slots]
        waits.append(_wait_for(requests, limit.requests, ahead.calls + 1, limit.window_s))
        number, burst = _slot_number(limit, now), math.ceil(limit.requests / BURST)
        full = (ahead.calls + sum(slot.requests for slot in slots if slot.number == number)) // burst
        waits.append((number + full) * limit.slot_s - now if full else 0.0)
    if limit.tokens:
        used = [(_leaves(limit, slot) - now, slot.tokens) for slot in slots]
        waits.append(_wait_for(used, limit.tokens, ahead.tokens + min(tokens, limit.tokens), limit.window_s))
    return max(waits)


def next_turn(state: RateState, last: int | None) -> int:
    """Return the turn of a new call. `last` is the last turn of the waiting calls with the same fairness key, if any.

    Calls start in the order of their turns, so that calls with different keys alternate (start-time fair queueing).
    """
    return max(state.turn, last or 0) + 1


def _wait_for(uses: Sequence[tuple[float, int]], limit: int, needed: int, window_s: float) -> float:
    """Return after how many seconds `needed` fits under the limit. `uses` are seconds until a use ends, and amounts."""
    windows, rest = divmod(max(needed, 1) - 1, limit)
    missing, wait = rest + 1 - (limit - sum(amount for _, amount in uses)), 0.0
    for ends, amount in uses:
        if missing <= 0:
            break
        missing, wait = missing - amount, ends
    return wait + windows * window_s


def _slot_number(limit: RateLimit, now: float) -> int:
    return int(now // limit.slot_s)


def _leaves(limit: RateLimit, slot: Slot) -> float:
    return (slot.number + 1 + LATE_SLOTS) * limit.slot_s + limit.window_s


def _recent(limit: RateLimit, state: RateState, now: float) -> list[Slot]:
    return [slot for slot in state.slots if _leaves(limit, slot) > now]


def _add(slots: Sequence[Slot], change: Slot) -> tuple[Slot, ...]:
    """Return the slots, in order, with the counts of `change` added to the slot of its number."""
    counts = {slot.number: slot for slot in slots}
    old = counts.get(change.number, Slot(change.number, 0, 0))
    counts[change.number] = Slot(change.number, old.requests + change.requests, old.tokens + change.tokens)
    return tuple(counts[number] for number in sorted(counts))
