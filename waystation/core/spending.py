"""What an invocation spends, with the agents that it calls, and what follows when its budget is used up.

A fold of the log like everything else: each reply, call and result counts once, when it is recorded. Only wall time
depends on when entries were applied; nothing that a model is shown follows from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from waystation.core import ids, responses
from waystation.core.answer import Answer
from waystation.core.answered import Answered
from waystation.core.budget import (
    MEASURES,
    NOTHING,
    NOTHING_SPENT,
    Budget,
    Grant,
    Policy,
    Spent,
    Usage,
    Used,
    granted,
)
from waystation.core.call import CallState
from waystation.core.model_call import Call, Confirmation, ModelReply, Phase
from waystation.core.payload import JsonObject
from waystation.core.tool_call import ToolOutcome
from waystation.core.wire import InvocationInput
from waystation.core.work import Work

MIN_WALL_S = 0.001
"""What is left of wall time for an agent that is called when none is: it makes one call, and wraps up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an agent's model may be called."""

    kind: Literal["go", "hold", "wrap_up", "stop"]
    """`hold`: not now, or, when nothing else goes on, not at all."""
    reason: str | None = None


class Share(NamedTuple):
    """What a called agent may use of what is left."""

    budget: Budget
    working_s: float
    """What the caller had worked when the agent was called."""


class Spending(Answered):
    """Calls, and what they cost."""

    def __init__(self, invocation_id: str, *, timed: bool = True) -> None:
        """`timed` says whether entries come with the workflow's times."""
        super().__init__(invocation_id)
        self.input: InvocationInput | None = None
        self.granted: Grant = NOTHING
        """What people allowed beyond the budget."""
        self.asks = 0
        """How often a person was asked for more."""
        self.wrapped_up: str | None = None
        """Why agents were told to wrap up."""
        self._spent = NOTHING_SPENT
        self._asked: dict[int, Work] = {}
        """For whom the model activities in flight work, by their number."""
        self._shares: dict[str, Share] = {}
        """By function call: what agents under way may use."""
        self._ask: CallState | None = None
        self._denied = False
        """Whether a person refused more, or gave no answer."""
        self._turned_away = False
        """Whether a call was refused because there were too many."""
        self._timed = timed
        self._working_s = 0.0
        self._works_since: float | None = None

    @property
    def budget(self) -> Budget:
        """What it may use, with what people granted."""
        return (self.input.budget if self.input else Budget()).raised(self.granted)

    @property
    def spent(self) -> Spent:
        """What it has used so far."""
        return self._spent.model_copy(update={"working_s": round(self._working_s, 6)})

    @property
    def used(self) -> Used:
        """What it has used so far, and what people granted it, for whoever called it."""
        return Used(spent=self.spent, granted=self.granted)

    @property
    def model_calls(self) -> int:
        """How many calls of models count against the budget, those in flight included."""
        called = (work for work in self._asked.values() if work.shape.kind == "llm" and work.phase_in_flight != "leave")
        return self._spent.model_calls + sum(1 for _ in called)

    def share(self, function_call_id: str) -> Budget:
        """Return what a called agent may use."""
        return self._shares[function_call_id].budget

    def verdict(self, work: Work) -> Verdict:
        """Return whether an agent, which waits for its next activity, may have it; only models are bounded."""
        if work.phase == "leave" or work.shape.kind != "llm":
            return Verdict("go")
        found = self._exhausted()
        if not found:
            return Verdict("hold" if self._shares and self._exhausted(reserved=True) else "go")
        policies = {limit: self._policy(limit) for limit in found}
        for kind in ("stop", "ask"):
            if limit := next((limit for limit, policy in policies.items() if policy == kind), None):
                return Verdict("stop", found[limit]) if kind == "stop" else Verdict("hold")
        reason = next(iter(found.values()))
        begins = not work.entered and not (work.parent and work.parent.shape.kind == "llm")
        if begins or work.wrapped or any(call.waiting for call in work.open.values()):
            return Verdict("hold", reason)
        return Verdict("wrap_up", reason)

    def check_grant(self, answer: Answer) -> None:
        """Look at what an answer to the present question grants.

        Raises:
            ValueError: It is no grant; the text says why.
        """
        if self._ask and answer.action == "approve":
            granted(answer.response, self.budget, self._ask.args["limits"])

    def _open_calls(self) -> list[CallState]:
        found = super()._open_calls()
        return [*found, self._ask] if self._ask and self._ask.waiting else found

    # What is used up.

    def _policy(self, limit: str) -> Policy:
        policy = self.budget.policy(limit)
        unknown = limit == "max_cost" and self._spent.unpriced
        # More money would not tell what a model costs.
        return "wrap_up" if policy == "ask" and (self._denied or unknown) else policy

    def _exhausted(self, *, reserved: bool = False) -> dict[str, str]:
        """Return the limits that are reached, and how that is said; `reserved`: with what called agents may use."""
        limits, found = self.budget.limits(), dict[str, str]()
        for limit, value in limits.items():
            if limit == "max_tool_calls":
                reached = self._turned_away or any(call.held == _reason(limit, value) for call in self._held())
            elif limit == "max_wall_s":
                reached = self._timed and self._working_s >= value
            else:
                reached = self._used(limit, reserved=reserved) >= value
            if reached:
                found[limit] = _reason(limit, value)
        if "max_cost" in limits and self._spent.unpriced:
            names = ", ".join(map(repr, self._spent.unpriced))
            found["max_cost"] = f"max_cost: what {names} costs is not known; give it a row in `prices`"
        return found

    def _used(self, limit: str, *, reserved: bool) -> float:
        used: float = self.model_calls if limit == "max_llm_calls" else getattr(self._spent, MEASURES[limit][0])
        if reserved and not self._as_in_adk(limit):
            used += sum(getattr(share.budget, limit) or 0 for share in self._shares.values())
        return used

    def _as_in_adk(self, limit: str) -> bool:
        """Whether a limit only stops its own invocation, as every one did before budgets were shared."""
        return limit == "max_llm_calls" and self.budget.on_exhausted is None

    # What is counted.

    def _tick(self, now: float) -> None:
        """Count the time up to `now` if something was under way."""
        if self._works_since is not None:
            self._working_s += max(now - self._works_since, 0.0)
        self._works_since = now

    def _rest(self, now: float) -> None:
        """Note from when on something is under way; agents that were called count their own time."""
        self._works_since = now if any(map(self._takes_time, self.active)) else None

    def _takes_time(self, work: Work) -> bool:
        if work.in_flight is not None:
            return True
        for call in work.batch:
            if call.performing and not call.held and call.gate != "waiting" and call.id not in self._shares:
                return True
        return False

    def _count_reply(self, work: Work, phase: Phase | None, reply: ModelReply) -> None:
        called = work.asks_model(phase, reply) and not work.over
        if work.wrapping:
            self.wrapped_up = self.wrapped_up or reply.wrap_up or "the budget is used up"
        calls = max(reply.attempt, 1) if called else reply.attempt
        self._spent += Spent(model_calls=calls) + self._tokens(reply.usage, reply.model, reply.model_version)
        if reply.compaction and reply.compaction.usage:
            summed_up = reply.compaction
            self._spent += Spent(model_calls=1) + self._tokens(summed_up.usage, summed_up.model)

    def _tokens(self, usage: Usage | None, *names: str | None) -> Spent:
        """Return what tokens of a model that goes by these names add."""
        total = usage.total if usage else 0
        if not (usage and total):
            return NOTHING_SPENT
        if not self.budget.prices:
            return Spent(total_tokens=total)
        known = [name for name in names if name]
        if price := self.budget.price(known):
            return Spent(total_tokens=total, cost=price.of(usage))
        return Spent(total_tokens=total, unpriced=(known[0] if known else "a model without a name",))

    def _count_child(self, function_call_id: str, spent: Spent, granted: Grant) -> None:
        share = self._shares.pop(function_call_id, None)
        self._spent += spent.model_copy(update={"working_s": 0.0})
        if share:
            # It may have worked beside others, whose time is counted already.
            self._working_s += max(spent.working_s - (self._working_s - share.working_s), 0.0)
        self.granted += granted

    def _count_lost(self, function_call_id: str, used: Used | None) -> None:
        """Count what a called agent used before it was lost: all that it might have, when nobody knows."""
        if used:
            self._count_child(function_call_id, used.spent, used.granted)
        elif share := self._shares.pop(function_call_id, None):
            lost = {
                MEASURES[limit][0]: value
                for limit, value in share.budget.limits().items()
                if limit != "max_wall_s" and not self._as_in_adk(limit)
            }
            self._spent += Spent.model_validate(lost)

    # What may be carried out.

    def _admit(self, work: Work, called: Sequence[CallState]) -> None:
        """Refuse the calls for which the budget has no room, or hold them while a person is asked; count the others."""
        if work.wrapping:
            for call in called:
                self._turn_away(call, "the agent was told to wrap up")
            return
        # Agents last: they share what is left.
        agents = [call for call in called if call.call.kind == "agent"]
        others = sum(1 for each in self.active if each is not work and each.shape.kind == "llm" and not each.children)
        for call in (*(call for call in called if call.call.kind in ("function", "long_running")), *agents):
            if room := self._no_room(call):
                limit, reason, for_good = room
                if for_good and self._policy(limit) == "ask":
                    call.held = reason
                else:
                    self._turned_away = self._turned_away or (for_good and limit == "max_tool_calls")
                    self._turn_away(call, reason)
                continue
            self._spent += Spent(tool_calls=1)
            if call.call.kind == "agent":
                left = len(agents) - agents.index(call)
                self._reserve(call, left + others)

    def _no_room(self, call: CallState) -> tuple[str, str, bool] | None:
        """Return which limit has no room for a call, how that is said, and whether no called agent can make room."""
        limits = self.budget.limits()
        tools = limits.get("max_tool_calls")
        if tools is not None and self._used("max_tool_calls", reserved=True) >= tools:
            for_good = self._used("max_tool_calls", reserved=False) >= tools
            return "max_tool_calls", _reason("max_tool_calls", tools), for_good
        if call.call.kind == "agent":
            for limit, reason in self._exhausted(reserved=True).items():
                if limit not in ("max_wall_s", "max_tool_calls") and not self._as_in_adk(limit):
                    return limit, reason, limit in self._exhausted()
        return None

    def _reserve(self, call: CallState, claimants: int) -> None:
        """Set aside, for an agent that is called, its share of what is left."""
        budget, share = self.budget, dict[str, float | int]()
        for limit, value in budget.limits().items():
            if limit == "max_wall_s":
                share[limit] = max(value - self._working_s, MIN_WALL_S)
                continue
            left = value - self._used(limit, reserved=True)
            least = 0 if limit == "max_tool_calls" else 1
            share[limit] = left / claimants if limit == "max_cost" else max(int(left) // claimants, least)
        self._shares[call.id] = Share(budget.model_copy(update=share), self._working_s)

    def _turn_away(self, call: CallState, reason: str) -> None:
        call.held = None
        if call.gate == "waiting":
            call.gate = "refused"
        response = responses.over_budget(call, reason)
        call.close(response)
        call.outcome = ToolOutcome(function_call_id=call.id, response=response, error_type="BudgetExhausted")

    def _held(self) -> list[CallState]:
        return [call for work in self.active for call in work.batch if call.held and call.outcome is None]

    # Asking for more.

    def _ask_if_due(self, now: float) -> None:
        """Ask a person for more when something cannot go on without."""
        if self.input is None or self.input.budget.on_exhausted != "ask" or (self._ask and self._ask.waiting):
            return
        found = {limit: reason for limit, reason in self._exhausted().items() if self._policy(limit) == "ask"}
        wanting = any(work.phase in ("enter", "turn") and work.shape.kind == "llm" for work in self.active)
        if found and (wanting or self._held()):
            self._open_ask(now, found)

    def _open_ask(self, now: float, found: dict[str, str]) -> CallState:
        self.asks += 1
        budget, reason = self.budget.limits(), "; ".join(found.values())
        args: JsonObject = {"reason": reason, "limits": {limit: budget.get(limit, 0) for limit in found}}
        hint = f"{reason}. Approve to allow as much again, or what `response` says; if rejected, the agent wraps up."
        self._ask = call = CallState(
            call=Call(id=ids.budget(self.asks)),
            name="budget",
            args=args,
            agent=self.works[0].agent,
            reply=0,
            turn=0,
            gate="none",
        )
        call.ask(now, "budget", Confirmation(hint=hint))
        self.calls[call.id] = call
        part = call.request_part()
        self._emit(
            now,
            self.works[0],
            {"role": "model", "parts": [part]},
            long_running_tool_ids=(call.request_id,),
        )
        return call

    def _asked_for_more(self, now: float, function_call_id: str) -> CallState | None:
        """Return the question of such an id; None when it is no question for more.

        Who reads a log without the workflow's times learns only from the answer that time was up.
        """
        if not ids.is_budget(function_call_id):
            return None
        if known := self.calls.get(function_call_id):
            return known
        limit = "max_wall_s"
        return self._open_ask(now, {limit: _reason(limit, self.budget.limits().get(limit, 0))})

    def _answer_ask(self, now: float, call: CallState, answer: Answer) -> None:
        self._occasion(call, "decided")
        call.answer, call.answered_at = answer, now
        self._emit(now, self.works[0], {"role": "user", "parts": [call.request_response_part(answer)]}, author="user")
        if answer.action == "reject":
            self._deny(now, call)
            return
        call.gate, call.closed = "passed", True
        try:
            grant = granted(answer.response, self.budget, call.args["limits"])
        except (ValueError, KeyError):  # it was checked; a log must be readable all the same
            grant = NOTHING
        self.granted += grant
        self._turned_away = False
        held = self._held()
        for each in held:
            each.held = None
        for work in self.active:
            if mine := [each for each in held if self.works[each.turn] is work]:
                self._admit(work, mine)
                self._settle(now, work)

    def _expire_ask(self, now: float, call: CallState) -> None:
        call.expired = True
        self._occasion(call, "expired")
        self._deny(now, call)

    def _deny(self, now: float, call: CallState) -> None:
        call.gate, call.closed, self._denied = "refused", True, True
        self._turned_away = bool(self._held())
        for each in self._held():
            self._turn_away(each, each.held or "")
            self._settle(now, self.works[each.turn])

    def _close_ask(self) -> None:
        if self._ask and self._ask.waiting:
            self._ask.gate, self._ask.closed = "refused", True


def _reason(limit: str, value: float) -> str:
    return f"{limit}: the limit of {int(value) if value == int(value) else value} {MEASURES[limit][1]} is used up"
