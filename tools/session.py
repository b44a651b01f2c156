"""The conversation that a call belongs to, as tools see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from waystation.core import Event, JsonObject, copy_json


class Session:
    """A copy: what is changed here is not recorded; write to `tool_context.state`.

    State and events are copied when they are first read: most tools read neither, and what is given here is the log's.
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
        """Return another copy of the same conversation, with another state."""
        return Session(id=self.id, app_name=self.app_name, user_id=self.user_id, state=state, events=self._given_events)

    @cached_property
    def state(self) -> JsonObject:
        """The state as it was when this was first read."""
        return {key: copy_json(value) for key, value in (self._given_state or {}).items()}

    @cached_property
    def events(self) -> Sequence[Event]:
        """What was said before the call."""
        return tuple(event.model_copy(deep=True) for event in self._given_events)
