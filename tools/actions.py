"""What a tool or callback does besides answering."""

from __future__ import annotations

import threading
from collections.abc import Iterator, MutableMapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from waystation.agents.readonly_context import ReadonlyContext
from waystation.core.event import NO_ACTIONS, EventActions, ToolConfirmation
from waystation.core.payload import JsonObject, plain
from waystation.tools.state import State


class Actions(BaseModel):
    """The EventActions a tool fills in, under ADK's names. Setting anything else is an error."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", validate_assignment=True)

    skip_summarization: bool | None = None
    transfer_to_agent: str | None = None
    transfer_reason: str | None = None
    escalate: bool | None = None
    # Factories, since pydantic takes ten times as long to copy a default; every context has actions.
    artifact_delta: dict[str, int] = Field(default_factory=dict)
    requested_tool_confirmations: dict[str, ToolConfirmation] = Field(default_factory=dict)
    requested_auth_configs: dict[str, JsonObject] = Field(default_factory=dict)
    render_ui_widgets: list[JsonObject] = Field(default_factory=list)

    _state: State = PrivateAttr(default_factory=State)

    @classmethod
    def over(cls, state: State) -> Actions:
        """Return empty actions whose `state_delta` is that of `state`."""
        actions = cls()
        actions._state = state
        return actions

    @property
    def state_delta(self) -> MutableMapping[str, Any]:
        """What this call wrote into state so far; writing here is writing into state."""
        return _StateDelta(self._state)

    def recorded(self) -> EventActions:
        """Return the actions as they are recorded.

        Raises:
            NotJson: State was changed in place into something that has no JSON form, or a name has none.
            ValidationError: A dictionary was filled with something of another type.
        """
        delta, removed = self._state.delta()
        given = {name: value for name, value in self if value is not None and value != {} and value != []}
        if not (given or delta or removed):
            return NO_ACTIONS
        # Made plain, since pydantic writes a lone surrogate in a key of dict[str, int] as something else, in silence.
        return EventActions(state_delta=delta, removed_keys=removed, **plain(given))


class _StateDelta(MutableMapping[str, Any]):
    """The changed part of a state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, key: str) -> Any:
        return self._state.delta()[0][key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._state[key] = value

    def __delitem__(self, key: str) -> None:
        del self._state[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.delta()[0])

    def __len__(self) -> int:
        return len(self._state.delta()[0])

    def __repr__(self) -> str:
        return repr(self._state.delta()[0])


class Acting(ReadonlyContext):
    """A context in which author code may do something besides answering."""

    def __init__(self, **about: Any) -> None:
        """`about` is as for `ReadonlyContext`."""
        super().__init__(**about)
        self._acts: Actions | None = None
        self._first = threading.Lock()

    @property
    def actions(self) -> Actions:
        """What the call does besides answering."""
        # Made when it is first asked for, in whatever thread: most calls only answer.
        with self._first:
            if self._acts is None:
                self._acts = Actions.over(self._state)
            return self._acts

    def recorded_actions(self) -> EventActions:
        """Return what the call did besides answering, as it is recorded.

        Raises:
            NotJson: State was changed in place into something that has no JSON form, or a name has none.
            ValidationError: A dictionary in `actions` was filled with something of another type.
        """
        untouched = self._acts is None and not self._state.has_delta()
        return NO_ACTIONS if untouched else self.actions.recorded()
