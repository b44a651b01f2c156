"""What a tool is given besides its arguments.

ADK serves tools and callbacks with one class under three names; so is it here.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

from waystation.core.event import ToolConfirmation
from waystation.core.payload import JsonObject, plain
from waystation.tools.credential_access import CredentialAccess
from waystation.tools.state import State
from waystation.tools.stored import ArtifactAccess, MemoryAccess


class ToolContext(ArtifactAccess, MemoryAccess, CredentialAccess):
    """One call of a tool: who calls, with what state, and what else the call shall do.

    Everything has a default, so that a test can call a tool with `ToolContext(state={"cart": []})`.
    """

    def __init__(
        self,
        *,
        function_call_id: str | None = None,
        idempotency_key: str = "",
        attempt: int = 1,
        tool_confirmation: ToolConfirmation | None = None,
        heartbeat: Callable[..., None] | None = None,
        is_aborted: Callable[[], bool] | None = None,
        **about: Any,
    ) -> None:
        """`heartbeat` and `is_aborted` may be called from any thread; `about` is as for `ReadonlyContext`."""
        super().__init__(**about)
        self._function_call_id = function_call_id
        self._idempotency_key = idempotency_key
        self._attempt = attempt
        self._tool_confirmation = tool_confirmation
        self._heartbeat = heartbeat
        self._is_aborted = is_aborted

    @property
    def state(self) -> State:
        """The state; what is written here is recorded with the call's response."""
        return self._state

    @property
    def function_call_id(self) -> str | None:
        """Id of the call; None in callbacks around agents and models."""
        return self._function_call_id

    @property
    def function_call_event_id(self) -> str | None:
        """Id that names the call in events, the same as `function_call_id`; ADK's guide names it."""
        return self._function_call_id

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
        """What a person said who was asked about this call, or None when nobody was."""
        return self._tool_confirmation

    @property
    def is_aborted(self) -> bool:
        """Whether the invocation was cancelled; a long loop looks here now and then and returns."""
        return self._is_aborted is not None and self._is_aborted()

    def heartbeat(self, *details: Any) -> None:
        """Say that the tool is alive. The next attempt may be given `details`.

        Raises:
            NotJson: A detail has no JSON form, or is a credential: the server keeps them for a while.
        """
        told = plain({"heartbeat": list(details)})["heartbeat"]
        if self._heartbeat is not None:
            self._heartbeat(*told)

    def request_confirmation(self, *, hint: str | None = None, payload: Any = None) -> None:
        """Have a person asked about this call; return something for the model meanwhile.

        The tool runs again from the top once the person has answered, and then finds the answer, which may be a no,
        in `tool_confirmation`. Source: adk-semantics 2.2.

        Raises:
            ValueError: This is not a tool call.
            NotJson: The payload has no JSON form.
        """
        if self._function_call_id is None:
            raise ValueError("request_confirmation requires function_call_id: only a tool call can be confirmed.")
        self.actions.requested_tool_confirmations[self._function_call_id] = ToolConfirmation(
            hint=hint or "", payload=plain({"payload": payload})["payload"]
        )

    def render_ui_widget(self, widget: Any) -> None:
        """Have readers of the event render a widget: a pydantic model or object with a unique `id`.

        Raises:
            ValueError: The event has a widget with this id.
            NotJson: It has no JSON form.
        """
        shown: JsonObject = plain({"widget": widget})["widget"]
        if not isinstance(shown, dict):
            raise TypeError(f"`widget` of `render_ui_widget` is {reprlib.repr(widget)}; use an object with an `id`.")
        if any(shown.get("id") == other.get("id") for other in self.actions.render_ui_widgets):
            raise ValueError(f"There is a widget with the id {shown.get('id')!r} already; give each its own.")
        self.actions.render_ui_widgets.append(shown)


Context = ToolContext
CallbackContext = ToolContext
