"""What was said before an invocation, and in it: the events that its agents' models are shown.

Ids of calls are counted in each invocation, so a call is found by its invocation and its id.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from waystation.core.call import CallState
from waystation.core.conversation.event import Event
from waystation.core.log.log import Log

CallKey: TypeAlias = tuple[str, str]
"""Id of an invocation, and of a call in it."""


class Earlier:
    """Events of several invocations in the order in which they were said. It only grows."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.logs: dict[str, Log] = {}
        """By invocation; what their events are made of."""

    def calls_of(self, invocation_id: str) -> Mapping[str, CallState]:
        """Return the calls of one invocation."""
        log = self.logs.get(invocation_id)
        return log.state.calls if log else {}


NOTHING = Earlier()


class Conversation:
    """The first `count` of earlier events, and then those of the invocation that goes on."""

    def __init__(self, log: Log, earlier: Earlier = NOTHING, count: int = 0) -> None:
        self.log = log
        self.earlier, self.count = earlier, count

    @property
    def events(self) -> Sequence[Event]:
        """All events, oldest first."""
        return [*self.earlier.events[: self.count], *self.log.state.events] if self.count else self.log.state.events

    def call(self, key: CallKey) -> CallState | None:
        """Return a call, of whichever invocation."""
        invocation_id, call_id = key
        if invocation_id == self.log.invocation_id:
            return self.log.state.calls.get(call_id)
        return self.earlier.calls_of(invocation_id).get(call_id)
