"""What instruction providers, toolsets and callbacks may look at."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from waystation.core import JsonObject, copy_json
from waystation.tools import NO_SERVICES, Services, Session, State

if TYPE_CHECKING:
    from google.genai.types import Content


class ReadonlyContext:
    """Who acts, for whom and with what state. Source: adk-semantics 5."""

    def __init__(
        self,
        *,
        state: Mapping[str, Any] | None = None,
        tool_name: str = "",
        invocation_id: str = "",
        agent_name: str = "",
        user_id: str = "",
        session_id: str | None = None,
        session: Session | None = None,
        branch: str | None = None,
        user_content: JsonObject | None = None,
        custom_metadata: Mapping[str, Any] | None = None,
        run_config: Any = None,
        services: Services = NO_SERVICES,
    ) -> None:
        """`user_content` is a Content as JSON; `session` is made from the other arguments when it is not given."""
        self._state = state if isinstance(state, State) else State(state, tool=tool_name)
        self._session = session or Session(id=session_id or invocation_id, user_id=user_id)
        self._shown = session if state is None else None
        self._user_content = user_content
        self._custom_metadata = custom_metadata or {}
        self._services = services
        self.invocation_id: Final = invocation_id
        self.agent_name: Final = agent_name
        """Name of the agent that acts."""
        self.user_id: Final = user_id or self._session.user_id
        """Who talks to the agent."""
        self.session_id: Final = session_id
        """The session, when the invocation belongs to one."""
        self.branch: Final = branch
        """Path of the parallel agents that the agent runs under."""
        self.run_config: Final = run_config
        """How the invocation was asked to run; see `RunConfig`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and hasattr(self, name):
            raise AttributeError(f"`{name}` of the context is read only.")
        super().__setattr__(name, value)

    @property
    def state(self) -> Mapping[str, Any]:
        """The state; it cannot be written here."""
        return MappingProxyType(self._state)

    @property
    def session(self) -> Session:
        """The conversation so far. A copy: write to `state` to change anything."""
        if self._shown is None:
            self._shown = self._session.over(self._state)
        return self._shown

    @property
    def custom_metadata(self) -> Mapping[str, Any]:
        """The `metadata` with which the invocation was started."""
        return {key: copy_json(value) for key, value in self._custom_metadata.items()}

    @property
    def user_content(self) -> Content | None:
        """The message that started the invocation, as a genai Content."""
        if self._user_content is None:
            return None
        from google.genai.types import Content  # takes a second to import, and few tools ask

        return Content.model_validate(copy_json(self._user_content))
