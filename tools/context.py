"""What a tool is given besides its arguments.

ADK serves tools and callbacks with one class under three names; so is it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, PrivateAttr

from tools.state import State
from waystation.core.event import EventActions, ToolConfirmation
from waystation.core.payload import JsonObject, plain

if TYPE_CHECKING:
    from google.genai.types import Content


class Actions(BaseModel):
    """The EventActions a tool fills in, under ADK's names. Setting anything else is an error."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", validate_assignment=True)

    skip_summarization: bool | None = None
    transfer_to_agent: str | None = None
    escalate: bool | None = None
    artifact_delta: dict[str, int] = {}
    requested_tool_confirmations: dict[str, ToolConfirmation] = {}

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
        # Made plain, since pydantic writes a lone surrogate in a key of dict[str, int] as something else, in silence.
        return EventActions(state_delta=delta, removed_keys=removed, **plain(dict(self)))


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


class ToolContext:
    """One call of a tool: who calls, with what state, and what else the call shall do.

    Everything has a default, so that a test can call a tool with `ToolContext(state={"cart": []})`.
    """

    def __init__(
        self,
        *,
        state: Mapping[str, Any] | None = None,
        tool_name: str = "",
        function_call_id: str | None = None,
        invocation_id: str = "",
        agent_name: str = "",
        user_id: str = "",
        session_id: str | None = None,
        idempotency_key: str = "",
        attempt: int = 1,
        tool_confirmation: ToolConfirmation | None = None,
        user_content: JsonObject | None = None,
        heartbeat: Callable[..., None] | None = None,
        is_aborted: Callable[[], bool] | None = None,
    ) -> None:
        """`heartbeat` and `is_aborted` may be called from any thread; `user_content` is a Content as JSON."""
        self._state = state if isinstance(state, State) else State(state, tool=tool_name)
        self._actions = Actions.over(self._state)
        self._function_call_id = function_call_id
        self._invocation_id = invocation_id
        self._agent_name = agent_name
        self._user_id = user_id
        self._session_id = session_id
        self._idempotency_key = idempotency_key
        self._attempt = attempt
        self._tool_confirmation = tool_confirmation
        self._user_content = user_content
        self._heartbeat = heartbeat
        self._is_aborted = is_aborted

    @property
    def state(self) -> State:
        """The state; what is written here is recorded with the call's response."""
        return self._state

    @property
    def actions(self) -> Actions:
        """What the call does besides answering."""
        return self._actions

    @property
    def function_call_id(self) -> str | None:
        """Id of the call; None in callbacks around agents and models."""
        return self._function_call_id

    @property
    def invocation_id(self) -> str:
        """Id of the invocation the call belongs to."""
        return self._invocation_id

    @property
    def agent_name(self) -> str:
        """Name of the agent that made the call."""
        return self._agent_name

    @property
    def user_id(self) -> str:
        """Who talks to the agent."""
        return self._user_id

    @property
    def session_id(self) -> str | None:
        """The session, when the invocation belongs to one."""
        return self._session_id

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this call, replay and reset included; for services that take one."""
        return self._idempotency_key

    @property
    def attempt(self) -> int:
        """1 for the first attempt at this call."""
        return self._attempt

    @property
    def tool_confirmation(self) -> ToolConfirmation | None:
        """What a person said who confirmed this call, or None when nobody was asked."""
        return self._tool_confirmation

    @property
    def user_content(self) -> Content | None:
        """The message that started the invocation, as a genai Content."""
        if self._user_content is None:
            return None
        from google.genai.types import Content  # takes a second to import, and few tools ask

        return Content.model_validate(self._user_content)

    @property
    def is_aborted(self) -> bool:
        """Whether the invocation was cancelled; a long loop looks here now and then and returns."""
        return self._is_aborted is not None and self._is_aborted()

    def heartbeat(self, *details: Any) -> None:
        """Say that the tool is alive. `details` must be JSON; the next attempt may be given them."""
        if self._heartbeat is not None:
            self._heartbeat(*details)

    def recorded_actions(self) -> EventActions:
        """Return what the call did besides answering, as it is recorded.

        Raises:
            NotJson: State was changed in place into something that has no JSON form, or a name has none.
            ValidationError: A dictionary in `actions` was filled with something of another type.
        """
        return self._actions.recorded()


Context = ToolContext
CallbackContext = ToolContext
