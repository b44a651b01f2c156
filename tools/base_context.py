"""The read-only context that instruction providers, toolsets and callbacks receive."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from waystation.core.errors import WaystationError
from waystation.core.payload import JsonObject, copy_json
from waystation.tools import Session, State
from waystation.tools.resources import NO_RESOURCES, Resources

if TYPE_CHECKING:
    from google.genai.types import Content


class NoInvocationContext(WaystationError, AttributeError):
    """Code for ADK read the invocation context, which does not exist here.

    Use the `ToolContext` or `CallbackContext` that the code already has. It provides state, artifacts and memory.
    """

    def __init__(self) -> None:
        super().__init__(
            "`_invocation_context` is an internal of ADK, which does not exist here, because invocations are "
            "workflows. Use the context's own `session`, `state`, `user_id`, `agent_name`, `invocation_id` and "
            "`run_config`, and its methods for artifacts, memories and credentials."
        )


class ReadonlyContext:
    """Read-only access to the current agent, the user, the session and its state."""

    # Attributes of the class, so that `Mock(spec=ToolContext)` has them, as in ADK.
    invocation_id: Final[str] = ""
    agent_name: Final[str] = ""
    """The name of the agent that is running."""
    user_id: Final[str] = ""
    """The ID of the user who is talking to the agent."""
    session_id: Final[str | None] = None
    """The session ID, or None if the invocation does not belong to a session."""
    branch: Final[str | None] = None
    """The path of parallel agents and their sub-agents that leads to this agent, or None outside parallel agents."""
    run_config: Final[Any] = None
    """The invocation's `RunConfig`."""
    tenant: Final[str | None] = None
    """The tenant that the invocation works for, or None. The app name of `session` then has the form
    `<tenant>~~<app>`, so that services separate the data of tenants."""
    resources: Final[Mapping[str, Any]] = NO_RESOURCES
    """The resources that the lifespan of the app yields, such as a database pool, by name."""

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
        tenant: str | None = None,
        resources: Mapping[str, Any] = NO_RESOURCES,
    ) -> None:
        """Create a context.

        `user_content` is a Content as JSON. By default, `session` is created from the other arguments.
        """
        self._state = state if isinstance(state, State) else State(state, tool=tool_name)
        self._session = session or Session(id=session_id or invocation_id, user_id=user_id)
        self._shown = session if state is None else None
        self._user_content = user_content
        self._custom_metadata = custom_metadata or {}
        vars(self).update(
            invocation_id=invocation_id,
            agent_name=agent_name,
            user_id=user_id or self._session.user_id,
            session_id=session_id,
            branch=branch,
            run_config=run_config,
            tenant=tenant,
            resources=Resources(resources),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and hasattr(self, name):
            raise AttributeError(f"`{name}` of the context is read-only.")
        super().__setattr__(name, value)

    @property
    def state(self) -> Mapping[str, Any]:
        """A read-only view of the state."""
        return MappingProxyType(self._state)

    @property
    def session(self) -> Session:
        """A copy of the session. Changes to it have no effect. Callbacks and tools can change the context's `state`."""
        if self._shown is None:
            self._shown = self._session.over(self._state)
        return self._shown

    @property
    def _invocation_context(self) -> Any:
        raise NoInvocationContext

    def get_invocation_context(self) -> Any:
        """Refuse the invocation context, which ADK returns.

        Raises:
            NoInvocationContext: Always.
        """
        raise NoInvocationContext

    @property
    def custom_metadata(self) -> Mapping[str, Any]:
        """The `metadata` passed when the invocation was started."""
        return {key: copy_json(value) for key, value in self._custom_metadata.items()}

    @property
    def user_content(self) -> Content | None:
        """The message that started the invocation, as a genai Content, or None if the context has no such message."""
        if self._user_content is None:
            return None
        from google.genai.types import Content  # imported here because it takes a second, and few tools need it

        return Content.model_validate(copy_json(self._user_content))
