"""Decide what an invocation does next.

Pure: the same log gives the same step, on any machine and in any year. Replay depends on it.
"""

from dataclasses import dataclass
from typing import TypeAlias

from waystation.core.entry import Failure
from waystation.core.log import Log
from waystation.core.model_call import Phase


@dataclass(frozen=True, slots=True)
class CallModel:
    """Tell an agent's model what is new and take its reply, or have the agent's callbacks run."""

    turn: int
    """Which of the agents at work."""
    phase: Phase


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
    for work in log.active:
        if phase := work.phase:
            limit = log.input.budget.max_llm_calls
            if phase != "leave" and work.shape.kind == "llm":
                if log.model_calls >= limit:
                    return Finish(reason=f"max_llm_calls: the limit of {limit} model calls is used up")
                # A loop whose agents never come to call their models would otherwise have no end.
                if log.spoken_for >= limit:
                    return Finish(reason=f"max_llm_calls: callbacks spoke for agents {limit} times, which is the limit")
            return CallModel(work.index, phase)
    performing = log.performing()
    return Perform(tuple(call.id for call in performing)) if performing else Wait()
