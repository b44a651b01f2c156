"""The store in which workers reserve model calls before they make them, and count what tenants and users used.

A reservation counts from the moment it is committed, and is corrected when the call has ended. If the worker is lost in
between, the reservation remains: the provider may have received the call, so it counts as it was reserved.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from waystation.core.budget import (
    Ahead,
    Amounts,
    PeriodBudget,
    RateLimit,
    RateState,
    find_period_end,
    find_wait,
    list_exhausted,
    list_periods,
    next_turn,
)
from waystation.core.errors import BudgetExhausted
from waystation.storage.sql_table import Row, SqlTable, Transaction

KEEP_S = 400 * 86_400.0
"""How long to keep the counts of past days and months: a little more than a year."""
LOST_AFTER_S = 3_600.0
"""How long a waiting call may be overdue before it loses its turn."""
NEAR = 1 / 12
"""The part of the window, 5 seconds of a minute, within which a call that is due counts as about to try again. A call
that is overdue by more than that counts as lost until it tries again."""

_TABLE = "waystation_quota_rates"
# Both SQLite and PostgreSQL accept these statements.
_SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS {_TABLE} (name TEXT PRIMARY KEY, state TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS waystation_quota_waiting (
    call TEXT,
    name TEXT,
    sender TEXT NOT NULL,
    turn BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    due DOUBLE PRECISION NOT NULL,  -- when the call is expected to try again
    attempt BIGINT NOT NULL,  -- the first attempt that had to wait
    PRIMARY KEY (call, name)
)""",
    "CREATE INDEX IF NOT EXISTS waystation_quota_turns ON waystation_quota_waiting (name, turn)",
    """CREATE TABLE IF NOT EXISTS waystation_quota_spent (
    period TEXT,  -- a day or a month, such as 2026-11-23 or 2026-11
    scope TEXT,  -- tenant or user
    tenant TEXT,
    user_id TEXT,  -- empty for a tenant
    calls BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    cost DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (period, tenant, scope, user_id)
)""",
)
_CREATE = f"INSERT INTO {_TABLE} VALUES (?, '{{}}') ON CONFLICT DO NOTHING"
_READ = f"SELECT state FROM {_TABLE} WHERE name = ?"
_WRITE = f"UPDATE {_TABLE} SET state = ? WHERE name = ?"
_OWN_PLACE = "SELECT turn, attempt FROM waystation_quota_waiting WHERE call = ? AND name = ?"
_LAST_TURN = "SELECT MAX(turn) FROM waystation_quota_waiting WHERE name = ? AND sender = ?"
_EARLIEST_TURN = "SELECT MIN(turn) FROM waystation_quota_waiting WHERE name = ? AND due > ?"
_AHEAD = """
SELECT COUNT(*), SUM(tokens), SUM(CASE WHEN due < ? THEN 1 ELSE 0 END), SUM(CASE WHEN due < ? THEN tokens ELSE 0 END)
FROM waystation_quota_waiting WHERE name = ? AND due > ? AND (turn < ? OR (turn = ? AND call < ?))
"""
_WAIT = """
INSERT INTO waystation_quota_waiting VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (call, name) DO UPDATE SET tokens = excluded.tokens, due = excluded.due, attempt = excluded.attempt
"""
_FORGET = "DELETE FROM waystation_quota_waiting WHERE call = ?"
_FORGET_LOST = "DELETE FROM waystation_quota_waiting WHERE name = ? AND due < ?"
_SPENT = """
SELECT scope, period, calls, tokens, cost FROM waystation_quota_spent
WHERE period IN (?, ?) AND tenant = ? AND user_id IN ('', ?)
"""
_SPEND = """
INSERT INTO waystation_quota_spent VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (period, tenant, scope, user_id)
DO UPDATE SET calls = waystation_quota_spent.calls + excluded.calls,
    tokens = waystation_quota_spent.tokens + excluded.tokens, cost = waystation_quota_spent.cost + excluded.cost
"""
_FORGET_SPENT = "DELETE FROM waystation_quota_spent WHERE tenant = ? AND period < ?"
_LIST = """
SELECT period, tenant, scope, user_id, calls, tokens, cost FROM waystation_quota_spent
WHERE period IN (?, ?) ORDER BY period, tenant, scope, cost DESC, user_id
"""
_OF_USER = "FROM waystation_quota_spent WHERE scope = 'user' AND tenant = ? AND user_id = ?"


@dataclass(frozen=True, kw_only=True)
class MeteredCall:
    """A model call, with what it is expected to use."""

    id: str
    """The same in all attempts at the call."""
    attempt: int = 1
    sender: str
    """The fairness key. Waiting calls with different keys start in turns."""
    tenant: str
    user: str
    name: str = ""
    """The name of the rate limit. Empty if none applies."""
    rate: RateLimit = field(default_factory=RateLimit)
    tokens: int = 0
    cost: float = 0.0
    budgets: tuple[PeriodBudget, ...] = ()
    counts: bool = False
    """Whether to count what the tenant and the user use."""


class Reservation(NamedTuple):
    """A call that may start now."""

    call: MeteredCall
    at: float
    """The time of the reservation in the store, in seconds since 1970."""
    reserved_at: float
    """The same time, as this process's monotonic clock shows it."""
    waits: int
    """The number of earlier attempts that ended because the call had to wait."""


class Spending(NamedTuple):
    """The usage of a tenant or a user in a day or a month."""

    period: str
    tenant: str
    user: str | None
    calls: int
    tokens: int
    cost: float


class QuotaStore:
    """Counts calls in an SQLite file or a PostgreSQL database. A database's own clock decides."""

    def __init__(self, place: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        """Set the store. It is created when first needed.

        Args:
            place: The path of the SQLite file, or the URL of the database.
            clock: Returns the seconds since 1970 if the store is a file.

        Raises:
            StoreFailed: The URL is not valid, or the extra `postgres` is missing.
        """
        self._table, self._clock = SqlTable.at(place, _TABLE, _SCHEMA), clock

    async def reserve(self, call: MeteredCall) -> Reservation | float:
        """Reserve what a call is expected to use, or return after how many seconds to try again.

        Raises:
            BudgetExhausted: A budget is used up.
            StoreFailed: The store is not available.
        """
        return await self._table.do(lambda db: self._reserve(db, call))

    async def stop_waiting(self, call_id: str) -> None:
        """Release the places of a call that waits, under all limits. `reserve` does so when the call may start.

        Raises:
            StoreFailed: The store is not available.
        """
        await self._table.do(lambda db: db.run(_FORGET, call_id))

    async def settle(
        self,
        reservation: Reservation,
        used: Amounts | None,
        *,
        retry_after_s: float | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """Replace what was reserved by what was used, unless that is unknown, which None means.

        `retry_after_s` is how long the provider asked not to send requests. It applies to all calls under the limit.
        `delay_s` is how long after the reservation the call was sent.

        Raises:
            StoreFailed: The store is not available. The call then counts as it was reserved.
        """
        if used or retry_after_s:
            await self._table.do(lambda db: self._settle(db, reservation, used, retry_after_s, delay_s))

    async def list_spending(self, period: str | None = None) -> list[Spending]:
        """Return what tenants and users used in a day or month such as `2026-11`, by default in the current ones.

        Raises:
            StoreFailed: The store is not available.
        """
        rows = await self._table.do(lambda db: self._list_spending(db, period))
        return [
            Spending(period, tenant, user if scope == "user" else None, *amounts)
            for period, tenant, scope, user, *amounts in rows
        ]

    async def delete_user(self, tenant: str, user: str, *, dry_run: bool = False) -> int:
        """Delete what a user has used in each day and month, and return the number of these periods.

        With `dry_run`, only count them. The tenant's own usage is kept.

        Raises:
            StoreFailed: The store is not available.
        """

        def delete(db: Transaction) -> int:
            if not dry_run:
                self._lock_row(db, _name_lock(tenant))
            [(count,)] = db.run(f"SELECT COUNT(*) {_OF_USER}", tenant, user)
            if not dry_run:
                db.run(f"DELETE {_OF_USER}", tenant, user)
            return int(count)

        return await self._table.do(delete)

    def _list_spending(self, db: Transaction, period: str | None) -> list[Row]:
        return db.run(_LIST, *([period, period] if period else list_periods(self._now(db)).values()))

    def _reserve(self, db: Transaction, call: MeteredCall) -> Reservation | float:
        state, now, reserved_at = self._lock(db, call), self._now(db), time.monotonic()
        if call.counts:
            self._check_budgets(db, call, now)
        first = call.attempt
        if call.name:
            place = db.run(_OWN_PLACE, call.id, call.name)
            turn, first = place[0] if place else (self._next_turn(db, call, state), first)
            # The attempts of a call that is held start again at 1.
            first = min(first, call.attempt)
            if wait_s := self._find_wait(db, call, state, now, turn):
                row = (call.id, call.name, call.sender, turn, call.tokens, now + wait_s, first)
                db.run(_FORGET_LOST, call.name, now - LOST_AFTER_S)
                db.run(_WAIT, *row)
                return wait_s
            [(earliest,)] = db.run(_EARLIEST_TURN, call.name, now - call.rate.window_s * NEAR)
            # If this call has passed others, a new call must not have to wait for all of them.
            passed = turn if earliest is None else min(turn, earliest)
            self._write(db, call, state.started(call.rate, now, call.tokens, passed))
        db.run(_FORGET, call.id)  # also under the limits of other models, to which the call fell back
        self._spend(db, call, now, Amounts(1, call.tokens, call.cost))
        return Reservation(call, now, reserved_at, call.attempt - first)

    def _settle(
        self,
        db: Transaction,
        reservation: Reservation,
        used: Amounts | None,
        retry_after_s: float | None,
        delay_s: float,
    ) -> None:
        call, at, *_ = reservation
        used = used or Amounts(0, call.tokens, call.cost)
        state = self._lock(db, call)
        if call.name:
            state = state.settled(call.rate, at, at + delay_s, call.tokens, used.tokens)
            self._write(db, call, state.blocked(self._now(db) + retry_after_s) if retry_after_s else state)
        self._spend(db, call, at, Amounts(0, used.tokens - call.tokens, used.cost - call.cost))

    def _next_turn(self, db: Transaction, call: MeteredCall, state: RateState) -> int:
        [(last,)] = db.run(_LAST_TURN, call.name, call.sender)
        return next_turn(state, last)

    def _find_wait(self, db: Transaction, call: MeteredCall, state: RateState, now: float, turn: int) -> float:
        """Return after how many seconds a call should try again, or 0.0 if it may start.

        A call starts before others with earlier turns if they are not about to try again, so that no capacity is lost.
        """
        near_s = call.rate.window_s * NEAR
        soon = now + near_s
        [row] = db.run(_AHEAD, soon, soon, call.name, now - near_s, turn, turn, call.id)
        calls, tokens, calls_soon, tokens_soon = (int(count or 0) for count in row)
        if not find_wait(call.rate, state, now, call.tokens, Ahead(calls_soon, tokens_soon)):
            return 0.0
        wait_s, long_s = find_wait(call.rate, state, now, call.tokens, Ahead(calls, tokens)), call.rate.window_s / 4
        # Calls ahead may use less than they reserved, so look again after half of a long wait.
        return wait_s if wait_s < long_s else max(long_s, wait_s / 2)

    def _check_budgets(self, db: Transaction, call: MeteredCall, now: float) -> None:
        periods = list_periods(now)
        rows = db.run(_SPENT, *periods.values(), call.tenant, call.user)
        spent = {(scope, period): Amounts(*amounts) for scope, period, *amounts in rows}
        for budget in call.budgets:
            scope, period = "tenant" if budget.user is None else "user", periods[budget.period]
            used = spent.get((scope, period), Amounts())
            if problems := list(list_exhausted(budget, used)):
                whose = "the user" if scope == "user" else f"tenant {call.tenant!r}" if call.tenant else "all users"
                ends = find_period_end(budget.period, now)
                raise BudgetExhausted(
                    f"The budget of {whose} for {period} is used up: {', '.join(problems)}. The {budget.period} ends "
                    f"at {ends:%Y-%m-%dT%H:%MZ}. Raise the budget, or wait until then.",
                    retry_after_s=ends.timestamp() - now,
                )
        if ("tenant", periods["month"]) not in spent:  # the first call of a month
            # Other tenants' rows may be locked, in another order.
            db.run(_FORGET_SPENT, call.tenant, list_periods(now - KEEP_S)["day"])

    def _spend(self, db: Transaction, call: MeteredCall, at: float, amounts: Amounts) -> None:
        for period in list_periods(at).values() if call.counts else ():
            for scope, user in (("tenant", ""), ("user", call.user)):
                db.run(_SPEND, period, scope, call.tenant, user, *amounts)

    def _lock(self, db: Transaction, call: MeteredCall) -> RateState:
        """Wait until no other call of the tenant and under the limit is reserved or settled. Return the limit's state.

        SQLite has only one transaction at a time.
        """
        state = "{}"
        if call.counts:
            self._lock_row(db, _name_lock(call.tenant))
        if call.name:
            state = self._lock_row(db, call.name)
        return RateState.model_validate_json(state)

    def _lock_row(self, db: Transaction, name: str) -> str:
        db.run(_CREATE, name)
        [(state,)] = db.run(f"{_READ} FOR UPDATE" if db.is_postgres else _READ, name)
        return str(state)

    def _write(self, db: Transaction, call: MeteredCall, state: RateState) -> None:
        db.run(_WRITE, state.encode().decode(), call.name)

    def _now(self, db: Transaction) -> float:
        if not db.is_postgres:  # all processes are on this machine
            return self._clock()
        return float(db.run("SELECT EXTRACT(EPOCH FROM clock_timestamp())")[0][0])


def _name_lock(tenant: str) -> str:
    """Return the name of the row that a transaction locks before it changes the usage of a tenant."""
    return f"tenant {tenant}"
