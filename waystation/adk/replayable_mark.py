"""The mark of google-adk agents whose `_run_async_impl` can run again from its start."""

from typing import TypeVar

T = TypeVar("T")
_MARK = "_waystation_replayable"


def replayable(agent: T) -> T:
    """Mark a google-adk agent, or a class of agents, whose `_run_async_impl` can run again from its start.

    `_run_async_impl` runs in an activity. It runs again after each sub-agent, with the recorded events of the
    sub-agents that have run. With the same events and state, it must take the same steps. Effects belong into tools.
    """
    if isinstance(agent, type):
        setattr(agent, _MARK, True)
    else:
        vars(agent)[_MARK] = True
    return agent


def is_replayable(agent: object) -> bool:
    """Return whether an agent or its class is marked as replayable."""
    return getattr(agent, _MARK, False) is True
