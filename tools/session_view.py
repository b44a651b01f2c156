"""The view of a session that tools and callbacks receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from waystation.core import Event, JsonObject, copy_json


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
        events: Sequence[Event] = (),
    ) -> None:
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
    def events(self) -> Sequence[Event]:
        """Copies of the events that precede the call."""
        return tuple(event.model_copy(deep=True) for event in self._given_events)
