"""Agents whose own code, the body, decides which sub-agent runs next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waystation.agents.base_agent import BaseAgent
from waystation.core.contract import BodyEvent, Event
from waystation.core.errors import WaystationError
from waystation.core.payload import JsonObject
from waystation.tools import CallbackContext


class BodyFailed(WaystationError):
    """The body of a custom agent cannot continue. Another attempt would fail, too.

    Change the body as the message says, then start the invocation again.
    """


class BodyChanged(BodyFailed):
    """A body that ran again took another step than the one that is recorded.

    Let the body depend on events and state only, not on the time, random numbers or other services.
    """

    def __init__(self, agent: str, number: int, recorded: str, now: str) -> None:
        super().__init__(
            f"Step {number} of the body of {agent!r} was to {recorded}, and is now to {now}. A body runs again from "
            "its start after each sub-agent, and must take the same steps if events and state are the same."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BodySegment:
    """A part of a body: what it does until it runs a sub-agent. The last segment has not run yet."""

    state: JsonObject
    """The session's state when the segment began."""
    seen: int
    """Number of the session's events when the segment began."""
    yielded: tuple[Event, ...] = ()
    """The events that the body yielded."""
    agent: str = ""
    """The sub-agent that ran at the end of the segment."""
    events: tuple[Event, ...] = ()
    """The events of the sub-agent."""


@dataclass(frozen=True, slots=True)
class BodyResult:
    """The outcome of a body's last segment."""

    yielded: tuple[BodyEvent, ...]
    agent: BaseAgent | None
    """The sub-agent to run next, or None if the body has ended."""


class CustomAgent(BaseAgent):
    """Base class of agents with a body."""

    async def run_body(self, context: CallbackContext, segments: Sequence[BodySegment]) -> BodyResult:
        """Run the body from its start through the last of `segments`, with the recorded results of the others.

        Raises:
            BodyFailed: The body does what cannot be replayed, or other steps than those recorded.
        """
        raise NotImplementedError
