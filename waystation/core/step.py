"""Decide what an invocation does next.

Pure: the same log gives the same step, on any machine and in any year. Replay depends on it.
"""

from dataclasses import dataclass
from typing import TypeAlias

from waystation.core.entry import Failure
from waystation.core.log import Log
from waystation.core.model_call import Phase
from waystation.core.spending import Verdict


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
    if log.cancelled:
        return Cancel()
    if log.failure:
        return Fail(log.failure)
    if log.input is None:
        return Wait()
    if log.over or log.concluded:
        return Finish()
    unmet: str | None = None
    for work in log.active:
        if phase := work.phase:
            match log.verdict(work):
                case Verdict("stop", reason):
                    return Finish(reason)
                case Verdict("hold", reason):
                    unmet = unmet or reason
                    continue
                case Verdict(_, wrap_up):
                    limit = log.budget.max_llm_calls
                    # A loop whose agents never come to call their models would otherwise have no end.
                    if log.spoken_for >= limit and phase != "leave" and work.shape.kind == "llm":
                        return Finish(f"max_llm_calls: callbacks spoke for agents {limit} times, which is the limit")
                    return CallModel(work.index, phase, wrap_up)
    performing = log.performing()
    if performing:
        return Perform(tuple(call.id for call in performing))
    # What agents were told to wrap up is said; those that have not begun never do.
    idle = not log.waiting() and all(work.in_flight is None for work in log.active)
    return Finish(unmet) if unmet and idle else Wait()
