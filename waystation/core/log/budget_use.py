"""Reducers for the budget: count usage, including that of called agents, and decide what an exhausted budget allows.

Each reply, call and result is counted once, when it is recorded.

Working time is the length of the union of intervals, so that calls that run in parallel count once. The interval of a
model call or tool call begins when the call could start, at the time of an entry, and lasts as long as the worker
measured. If no worker measured it (because the call timed out, was canceled or lost its worker, ran code of the user
that reports no duration, or was recorded by an older version), it lasts until the entry of the result. The interval of
a called agent lasts as long as the working time that the agent reports, or has no length if it reports none. Prompts
never depend on working time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from waystation.core.budget import MEASURES, NOTHING_SPENT, Grant, Policy, Spent, Usage, Used
from waystation.core.contract import ModelReply, Phase, ToolOutcome
from waystation.core.log import responses
from waystation.core.log.agent_runs import next_phase
from waystation.core.log.call import CallState
from waystation.core.log.entry import Body, CallReturned, ModelReplied
from waystation.core.log.entry_ref import CallRef, EntryRef, ModelReplyRef
from waystation.core.log.invocation_state import AgentRun, BudgetState, InvocationState, Share

MIN_WALL_S = 0.001
"""Wall time granted to an agent that is called when no time is left. It is enough for one model call to wrap up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on whether an agent's model may be called."""

    kind: Literal["go", "hold", "wrap_up", "stop"]
    """`hold` means that the model is not called for now, `wrap_up` that it must answer without calling tools, and
    `stop` that the invocation ends."""
    reason: str | None = None


def verdict(state: InvocationState, run: AgentRun, phase: Phase | None) -> Verdict:
    """Decide whether the next activity of an agent run may be scheduled. Only model calls are limited."""
    if phase == "leave" or run.shape.kind != "llm":
        return Verdict("go")
    reasons = exhausted(state)
    if not reasons:
        return Verdict("hold" if state.budget_use.shares and exhausted(state, reserved=True) else "go")
    policies = {limit: policy_of(state, limit) for limit in reasons}
    for limit, policy in policies.items():
        if policy == "stop":
            return Verdict("stop", reasons[limit])
    if "ask" in policies.values():
        return Verdict("hold")
    reason = next(iter(reasons.values()))
    parent = state.runs[run.parent] if run.parent is not None else None
    begins = not run.entered and not (parent and parent.shape.kind == "llm")
    if begins or run.wrapped or any(state.calls[function_call_id].waiting for function_call_id in run.open):
        return Verdict("hold", reason)
    return Verdict("wrap_up", reason)


def is_working(state: InvocationState) -> bool:
    """Return whether a model or tool is running or about to run. Held work does not count."""
    for run in state.runs.at_work():
        if run.in_flight is not None and str(ModelReplyRef(run.in_flight)) not in state.holds:
            return True
        calls = (call for call in state.batch(run) if call.performing and not call.held)
        if any(str(CallRef(call.id, call.run)) not in state.holds for call in calls):
            return True
        if (phase := next_phase(state, run)) and verdict(state, run, phase).kind != "hold":
            return True
    return False


def model_calls(state: InvocationState) -> int:
    """Return the number of model calls that count against the budget, including those in flight."""
    asked = map(state.runs.__getitem__, state.runs.asked.values())
    in_flight = sum(run.shape.kind == "llm" and run.phase_in_flight != "leave" for run in asked)
    return state.budget_use.spent.model_calls + in_flight


# Exhausted limits.


def policy_of(state: InvocationState, limit: str) -> Policy:
    """Return the policy for a limit. `ask` becomes `wrap_up` if a request was denied or cannot help."""
    policy, use = state.budget.policy(limit), state.budget_use
    unknown = limit == "max_cost" and use.spent.unpriced
    # If a model has no price, no grant can help, because its cost is unknown.
    return "wrap_up" if policy == "ask" and (use.denied or unknown) else policy


def exhausted(state: InvocationState, *, reserved: bool = False) -> dict[str, str]:
    """Return the message for each exhausted limit, by its name.

    With `reserved`, the shares of called agents count as used. `max_cost` is also exhausted if a cost is unknown.
    """
    limits, use, reasons = state.budget.limits(), state.budget_use, dict[str, str]()
    for limit, value in limits.items():
        if limit == "max_tool_calls":
            reached = use.turned_away or any(call.held == reason_of(limit, value) for call in held_calls(state))
        elif limit == "max_wall_s":
            reached = use.timed and use.working_s >= value
        else:
            reached = _used(state, limit, reserved=reserved) >= value
        if reached:
            reasons[limit] = reason_of(limit, value)
    if "max_cost" in limits and use.spent.unpriced:
        names = ", ".join(map(repr, use.spent.unpriced))
        reasons["max_cost"] = f"max_cost: what {names} costs is not known; give it a row in `prices`"
    return reasons


def held_calls(state: InvocationState) -> list[CallState]:
    """Return the calls that are on hold until more budget is granted."""
    return [call for run in state.runs.at_work() for call in state.batch(run) if call.held and call.outcome is None]


def reason_of(limit: str, value: float) -> str:
    """Return the message for an exhausted limit."""
    return f"{limit}: the limit of {int(value) if value == int(value) else value} {MEASURES[limit][1]} is used up"


def _used(state: InvocationState, limit: str, *, reserved: bool) -> float:
    spent = state.budget_use.spent
    used: float = model_calls(state) if limit == "max_llm_calls" else getattr(spent, MEASURES[limit][0])
    if reserved and not _as_in_adk(state, limit):
        used += sum(getattr(share.budget, limit) or 0 for share in state.budget_use.shares.values())
    return used


def _as_in_adk(state: InvocationState, limit: str) -> bool:
    """Return whether the shares of called agents never count as used for this limit, as in ADK."""
    return limit == "max_llm_calls" and state.budget.on_exhausted is None


# Counting.


def count_duration(state: InvocationState, ref: EntryRef, body: Body) -> None:
    """Count the working time of a call whose result contains a measured duration."""
    match ref, body:
        case ModelReplyRef() | CallRef(), ModelReplied(reply=result) | CallReturned(outcome=result) if result.measured:
            use, activity_id = state.budget_use, str(replace(ref, attempt=""))
            if (since := use.started.pop(activity_id, None)) is not None:
                _count_interval(use, since, since + result.duration_s)


def update_clock(state: InvocationState, now: float) -> None:
    """Note the work that can start at `now`, and count the work that has ended without a measured duration."""
    use, ended = state.budget_use, state.outcome.ended
    working = {} if ended else {activity_id: now for run in state.runs.at_work() for activity_id in _work(state, run)}
    for activity_id in [known for known in use.started if known not in working]:
        _count_interval(use, use.started.pop(activity_id), now)
    use.started = working | use.started
    for function_call_id, share in use.shares.items():
        if not share.since and (call := state.calls.get(function_call_id)) and call.performing:
            use.shares[function_call_id] = share._replace(since=now)
    earliest = min((*use.started.values(), *(share.since or now for share in use.shares.values())), default=now)
    use.worked = [interval for interval in use.worked if interval[1] > earliest]


def _work(state: InvocationState, run: AgentRun) -> Iterator[str]:
    """Yield the IDs of the activities of an agent run that are running or due to run. Called agents count their own
    time, and a call that is waiting for an approval is not `performing`."""
    if run.in_flight is not None:
        yield str(ModelReplyRef(run.in_flight))
    for call in state.batch(run):
        if call.performing and not call.held and call.id not in state.budget_use.shares:
            yield str(CallRef(call.id, call.run))


def _count_interval(use: BudgetState, start: float, end: float) -> None:
    """Count the part of an interval that has not been counted yet."""
    overlaps = [(a, b) for a, b in use.worked if a <= end and b >= start]
    known = sum(min(b, end) - max(a, start) for a, b in overlaps)
    use.working_s += max(end - start - known, 0.0)
    apart = [interval for interval in use.worked if interval not in overlaps]
    use.worked = [*apart, (min(start, *(a for a, _ in overlaps), end), max(end, *(b for _, b in overlaps), start))]


def count_reply(state: InvocationState, run: AgentRun, phase: Phase | None, reply: ModelReply) -> None:
    """Count the usage of a model reply and of the summary made for it, if any."""
    use, outcome = state.budget_use, state.outcome
    called = run.asks_model(phase, reply) and not run.over
    if run.wrapping:
        use.wrapped_up = use.wrapped_up or reply.wrap_up or "the budget is used up"
    calls = max(reply.attempt, 1) if called else reply.attempt
    use.spent += Spent(model_calls=calls) + _tokens(state, reply, reply.usage, reply.model, reply.model_version)
    outcome.usage += reply.usage
    if reply.compaction and reply.compaction.usage:
        summary = reply.compaction
        use.spent += Spent(model_calls=1) + _tokens(state, reply, summary.usage, summary.model)
        outcome.usage += summary.usage


def _tokens(state: InvocationState, reply: ModelReply, usage: Usage | None, *names: str | None) -> Spent:
    """Return the tokens of a model call and, if costs are counted, their cost or the name of the unpriced model.

    `names` are the names under which the budget or the reply may list a price.
    """
    total = usage.total if usage else 0
    if not (usage and total):
        return NOTHING_SPENT
    if not (state.budget.prices or state.budget.max_cost):
        return Spent(total_tokens=total)
    known = [name for name in names if name]
    if price := state.budget.price(known, reply.prices):
        return Spent(total_tokens=total, cost=price.of(usage))
    return Spent(total_tokens=total, unpriced=(known[0] if known else "a model without a name",))


def count_child(state: InvocationState, function_call_id: str, spent: Spent, granted: Grant) -> None:
    """Count the usage of a called agent, release its share, and add the budget that it was granted."""
    use = state.budget_use
    share = use.shares.pop(function_call_id, None)
    use.spent += spent.model_copy(update={"working_s": 0.0})
    if share:
        _count_interval(use, share.since, share.since + spent.working_s)
    use.granted += granted


def count_lost(state: InvocationState, function_call_id: str, used: Used | None) -> None:
    """Count the usage of a called agent whose result was lost.

    If `used` is None, the agent's whole share counts, except its wall time.
    """
    if used:
        count_child(state, function_call_id, used.spent, used.granted)
    elif share := state.budget_use.shares.pop(function_call_id, None):
        lost = {
            MEASURES[limit][0]: value
            for limit, value in share.budget.limits().items()
            if limit != "max_wall_s" and not _as_in_adk(state, limit)
        }
        state.budget_use.spent += Spent.model_validate(lost)


# Admitting calls.


def admit(state: InvocationState, run: AgentRun, called: Sequence[CallState]) -> None:
    """Count the calls that fit into the budget. Refuse the others, or hold them until an approver decides.

    If the agent was asked to wrap up, refuse all calls.
    """
    use = state.budget_use
    if run.wrapping:
        for call in called:
            turn_away(call, "the agent was asked to wrap up")
        return
    # Handle called agents last, because they share whatever budget is left.
    agents = [call for call in called if call.call.kind == "agent"]
    peers = (other for other in state.runs.at_work() if other is not run and other.shape.kind == "llm")
    claimants = len(agents) + sum(not other.children for other in peers)
    for call in (*(call for call in called if call.call.kind in ("function", "long_running")), *agents):
        if room := _no_room(state, call):
            limit, reason, for_good = room
            if for_good and policy_of(state, limit) == "ask":
                call.held = reason
            else:
                use.turned_away = use.turned_away or (for_good and limit == "max_tool_calls")
                turn_away(call, reason)
            continue
        use.spent += Spent(tool_calls=1)
        if call.call.kind == "agent":
            _reserve(state, call, claimants - agents.index(call))


def turn_away(call: CallState, reason: str) -> None:
    """Close a call that does not fit into the budget."""
    call.held = None
    if call.gate == "waiting":
        call.gate = "refused"
    response = responses.over_budget(call, reason)
    call.close(response)
    call.outcome = ToolOutcome(function_call_id=call.id, response=response, error_type="BudgetExhausted")


def _no_room(state: InvocationState, call: CallState) -> tuple[str, str, bool] | None:
    """Return the limit that a call would exceed, the reason, and whether this is final, or None if the call fits.

    It is not final if the limit is reached only because of shares reserved for called agents, which may return part of
    them.
    """
    tools = state.budget.limits().get("max_tool_calls")
    if tools is not None and _used(state, "max_tool_calls", reserved=True) >= tools:
        for_good = _used(state, "max_tool_calls", reserved=False) >= tools
        return "max_tool_calls", reason_of("max_tool_calls", tools), for_good
    if call.call.kind == "agent":
        for limit, reason in exhausted(state, reserved=True).items():
            if limit not in ("max_wall_s", "max_tool_calls") and not _as_in_adk(state, limit):
                return limit, reason, limit in exhausted(state)
    return None


def _reserve(state: InvocationState, call: CallState, claimants: int) -> None:
    """Reserve a share of the budget for a called agent."""
    budget, use, share = state.budget, state.budget_use, dict[str, float | int]()
    for limit, value in budget.limits().items():
        if limit == "max_wall_s":
            share[limit] = max(value - use.working_s, MIN_WALL_S)
            continue
        left = value - _used(state, limit, reserved=True)
        least = 0 if limit == "max_tool_calls" else 1
        share[limit] = left / claimants if limit == "max_cost" else max(int(left) // claimants, least)
    use.shares[call.id] = Share(budget.model_copy(update=share))
