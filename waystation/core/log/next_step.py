"""Decide what an invocation does next.

Pure: the same log gives the same step, on any machine and in any year. Replay depends on it.
"""

from dataclasses import dataclass
from typing import TypeAlias

from waystation.core.activity_io import Phase
from waystation.core.log.agent_runs import next_phase
from waystation.core.log.budget_use import Verdict, verdict
from waystation.core.log.entry import Failure
from waystation.core.log.log import Log


@dataclass(frozen=True, slots=True)
class CallModel:
    """Tell an agent's model what is new and take its reply, or have the agent's callbacks run."""

    turn: int
    """Which of the agents at work."""
    phase: Phase
    wrap_up: str | None = None
    """Why the agent has to answer now, without calling anything."""


@dataclass(frozen=True, slots=True)
class Perform:
    """Carry out these calls, all at once; those already under way stay under way."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something arrives: a reply, an answer, a deadline."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The invocation is over and has a result."""

    reason: str | None = None
    """Why it stopped before the agent was done."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The invocation cannot go on."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Cancel:
    """The invocation was cancelled."""


Step: TypeAlias = CallModel | Perform | Wait | Finish | Fail | Cancel


def next_step(log: Log) -> Step:
    """Return what the workflow has to do, given everything that happened."""
    state, outcome = log.state, log.state.outcome
    if outcome.cancelled:
        return Cancel()
    if outcome.failure:
        return Fail(outcome.failure)
    if state.input is None:
        return Wait()
    if state.over or outcome.concluded:
        return Finish()
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
                    # A loop whose agents never come to call their models would otherwise have no end.
                    if state.runs.spoken_for >= limit and phase != "leave" and run.shape.kind == "llm":
                        return Finish(f"max_llm_calls: callbacks spoke for agents {limit} times, which is the limit")
                    return CallModel(run.index, phase, wrap_up)
    if performing := state.performing():
        return Perform(tuple(call.id for call in performing))
    # Agents that were asked to wrap up have finished; agents not started yet never will.
    idle = not state.waiting() and all(run.in_flight is None for run in state.runs.at_work())
    return Finish(unmet) if unmet and idle else Wait()
