"""The view of a session that tools and callbacks receive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from waystation.core import contract
from waystation.core.payload import JsonObject, copy_json
from waystation.events.lazy_list import LazyList

if TYPE_CHECKING:
    from waystation.events import Event


class Session:
    """A copy of the session. Changes to it are not recorded; write to `tool_context.state` instead.

    State and events belong to the log, so they are copied, but only on first read, because most tools use neither.
    """

    def __init__(
        self,
        *,
        id: str,  # ADK's name
        app_name: str = "",
        user_id: str = "",
        state: Mapping[str, Any] | None = None,
        events: Iterable[contract.Event | Event] = (),
    ) -> None:
        """Initialize the view. Recorded events are converted, and other events are shown as they are."""
        self.id, self.app_name, self.user_id = id, app_name, user_id
        self._given_state, self._given_events = state, events

    def over(self, state: Mapping[str, Any]) -> Session:
        """Return a copy of this session with a different state."""
        return Session(id=self.id, app_name=self.app_name, user_id=self.user_id, state=state, events=self._given_events)

    @cached_property
    def state(self) -> JsonObject:
        """A copy of the state, taken when this property is first read."""
        return {key: copy_json(value) for key, value in (self._given_state or {}).items()}

    @cached_property
    def events(self) -> list[Event]:
        """The events that precede the call, each copied and converted to genai's types when it is first read."""
        return LazyList(tuple(self._given_events), _convert_event)

    @property
    def given_events(self) -> Iterable[contract.Event | Event]:
        """The events as they were passed. They must not be changed."""
        return self._given_events

    @property
    def last_update_time(self) -> float:
        """The time of the last event, in seconds since 1970. 0 if there is none."""
        return max((event.timestamp for event in self._given_events), default=0.0)


def _convert_event(event: contract.Event | Event) -> Event:
    if not isinstance(event, contract.Event):
        return event
    from waystation.events import Event  # loads google-genai, which takes long

    return Event.from_recorded(event)
