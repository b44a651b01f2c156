"""Decide what an invocation does next.

The decision depends only on the log, so replay always makes the same one.
"""

from dataclasses import dataclass
from typing import TypeAlias

from waystation.core.contract import Phase
from waystation.core.log.agent_runs import next_phase
from waystation.core.log.budget_use import Verdict, verdict
from waystation.core.log.entry import Failure
from waystation.core.log.log import Log


@dataclass(frozen=True, slots=True)
class CallModel:
    """A step that schedules a model activity, which calls an agent's model or runs its callbacks."""

    turn: int
    """Index of the agent run."""
    phase: Phase
    wrap_up: str | None = None
    """Why the agent must answer now without calling tools, or None if it may continue."""


@dataclass(frozen=True, slots=True)
class Perform:
    """A step that runs these calls in parallel. Calls that are already in flight continue."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """A step that waits for a result, an answer or a deadline."""


@dataclass(frozen=True, slots=True)
class Finish:
    """A step that ends the invocation with a result."""

    reason: str | None = None
    """Why the invocation stops before its agents have finished, or None if they have finished or a plugin ended it."""


@dataclass(frozen=True, slots=True)
class Fail:
    """A step that fails the invocation."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Cancel:
    """A step that ends the invocation because its cancellation was requested."""


Step: TypeAlias = CallModel | Perform | Wait | Finish | Fail | Cancel


def next_step(log: Log) -> Step:
    """Return the next step of the invocation with this log."""
    state, outcome = log.state, log.state.outcome
    if outcome.cancelled:
        return Cancel()
    if outcome.failure:
        return Fail(outcome.failure)
    if state.input is None:
        return Wait()
    if state.over or outcome.concluded:
        return Finish()
    if state.input.unknown:
        return Wait() if state.waiting() else Finish()
    unmet: str | None = None
    for run in state.runs.at_work():
        if phase := next_phase(state, run):
            match verdict(state, run, phase):
                case Verdict("stop", reason):
                    return Finish(reason)
                case Verdict("hold", reason):
                    unmet = unmet or reason
                    continue
                case Verdict(_, wrap_up):
                    limit = state.budget.max_llm_calls
                    # End loops in which callbacks always answer on behalf of the agents. Without model calls, no limit
                    # would end them.
                    if state.runs.spoken_for >= limit and phase != "leave" and run.shape.kind == "llm":
                        return Finish(f"max_llm_calls: callbacks spoke for agents {limit} times, which is the limit")
                    if 0 < state.runs.rounds_alone >= limit and phase != "leave":
                        text = "loops without max_iterations had {} rounds without a model call, which is the limit"
                        return Finish(f"max_llm_calls: {text.format(state.runs.rounds_alone)}")
                    return CallModel(run.index, phase, wrap_up)
    if performing := state.performing():
        return Perform(tuple(call.id for call in performing))
    # If nothing is in flight, agents that were asked to wrap up have finished, and a limit keeps the others from
    # starting.
    idle = not state.waiting() and all(run.in_flight is None for run in state.runs.at_work())
    return Finish(unmet) if unmet and idle else Wait()
