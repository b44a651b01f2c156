"""google-adk's contexts, built from Waystation's.

They use the worker's services, and what authors change in them is recorded through Waystation's context.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.adk.agents import BaseAgent, RunConfig
from google.adk.agents._streaming_mode import StreamingMode
from google.adk.agents.context import Context
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext as AdkReadonlyContext
from google.adk.artifacts import BaseArtifactService
from google.adk.auth.auth_credential import AuthCredential
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.events import Event, EventActions
from google.adk.memory import BaseMemoryService
from google.adk.memory.base_memory_service import SearchMemoryResponse
from google.adk.sessions import BaseSessionService, Session
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.utils._sync_runner import _use_sync_callable_runner

from waystation import auth, events
from waystation.agents import ReadonlyContext
from waystation.core import contract
from waystation.events.lazy_list import LazyList
from waystation.memory import MemoryEntry
from waystation.tools import Session as WaystationSession
from waystation.tools import ToolContext, invoke

_EVENT_FIELDS = Event.model_fields.keys() & events.Event.model_fields.keys() - {"actions"}
_ACTION_FIELDS = EventActions.model_fields.keys() - {"requested_auth_configs"}


def to_adk_event(event: events.Event) -> Event:
    """Convert an event to google-adk's class."""
    actions = event.actions.model_dump(exclude_defaults=True)
    known = {name: value for name, value in actions.items() if name in _ACTION_FIELDS}
    return Event(**{name: getattr(event, name) for name in _EVENT_FIELDS}, actions=EventActions(**known))


def from_adk_event(event: Event) -> events.Event:
    """Convert an event of google-adk to Waystation's class."""
    return events.Event.model_validate(event.model_dump(mode="json", exclude_none=True))


def _create_session(session: WaystationSession) -> Session:
    return Session.model_construct(
        id=session.id,
        app_name=session.app_name,
        user_id=session.user_id,
        state=dict(session.state),
        events=LazyList(session.events, to_adk_event),
        last_update_time=session.last_update_time,
    )


class _Sessions(BaseSessionService):
    """Returns the invocation's own session, as it was before the changes of the code that runs.

    Writing is refused, because the history is the only record of a session.
    """

    def __init__(self, session: WaystationSession) -> None:
        self._session = session

    async def get_session(self, *, app_name: str, user_id: str, session_id: str, config: Any = None) -> Session:
        own = self._session
        if (app_name, user_id, session_id) != (own.app_name, own.user_id, own.id):
            await self._refuse()
        return _create_session(own)

    async def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            "To tools and callbacks, the session service returns only the session of the invocation, and it does not "
            "write, because the invocation's history holds the session. Write to `tool_context.state` instead."
        )

    create_session = list_sessions = delete_session = append_event = _refuse


class _Artifacts(BaseArtifactService):
    """The worker's artifact service. Artifacts that a tool saves are saved once, also if the tool is retried."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._service: Any = context._artifacts()

    async def save_artifact(
        self, *, filename: str, artifact: Any, custom_metadata: dict[str, Any] | None = None, **_: Any
    ) -> int:
        return await self._context.save_artifact(filename, artifact, custom_metadata)

    async def load_artifact(self, **about: Any) -> Any:
        return await self._service.load_artifact(**about)

    async def list_artifact_keys(self, **about: Any) -> list[str]:
        names: list[str] = await self._service.list_artifact_keys(**about)
        return names

    async def delete_artifact(self, **about: Any) -> None:
        await self._service.delete_artifact(**about)

    async def list_versions(self, **about: Any) -> list[int]:
        versions: list[int] = await self._service.list_versions(**about)
        return versions

    async def list_artifact_versions(self, **about: Any) -> Any:
        return await self._service.list_artifact_versions(**about)

    async def get_artifact_version(self, **about: Any) -> Any:
        return await self._service.get_artifact_version(**about)


class _Memory(BaseMemoryService):
    """The worker's memory service."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context

    async def add_session_to_memory(self, session: Session) -> None:
        await self._context.add_session_to_memory()

    async def add_events_to_memory(
        self, *, events: Sequence[Event], custom_metadata: Mapping[str, object] | None = None, **_: Any
    ) -> None:
        await self._context.add_events_to_memory(
            events=[from_adk_event(event) for event in events], custom_metadata=custom_metadata
        )

    async def add_memory(
        self, *, memories: Sequence[Any], custom_metadata: Mapping[str, object] | None = None, **_: Any
    ) -> None:
        entries = [MemoryEntry.model_validate(memory.model_dump(exclude_none=True)) for memory in memories]
        await self._context.add_memory(memories=entries, custom_metadata=custom_metadata)

    async def search_memory(self, *, query: str, **_: Any) -> SearchMemoryResponse:
        response = await self._context.search_memory(query)
        return SearchMemoryResponse.model_validate(response.model_dump(exclude_none=True))

    async def delete_memory(self, *, memory_id: str | None = None, **_: Any) -> None:
        await self._context.delete_memory(memory_id)


def _to_config(config: Any) -> auth.AuthConfig:
    """Convert google-adk's AuthConfig. A derived key is derived again, because google-adk's depends on secrets."""
    fields = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    derived = type(config)(auth_scheme=config.auth_scheme, raw_auth_credential=config.raw_auth_credential)
    if config.credential_key == derived.credential_key:
        fields.pop("credentialKey", None)
    return auth.AuthConfig.model_validate(fields)


def _from_credential(credential: auth.AuthCredential | None) -> Any:
    if credential is None:
        return None
    return AuthCredential.model_validate(credential.model_dump(mode="json", by_alias=True, exclude_none=True))


class _Credentials(BaseCredentialService):
    """The worker's credential service."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context

    async def load_credential(self, auth_config: Any, callback_context: Any) -> Any:
        return _from_credential(await self._context.load_credential(_to_config(auth_config)))

    async def save_credential(self, auth_config: Any, callback_context: Any) -> None:
        await self._context.save_credential(_to_config(auth_config))


class AdkContext(Context):
    """A google-adk Context whose changes are recorded, and whose credentials never reach state or history."""

    def __init__(self, context: ToolContext, invocation: InvocationContext) -> None:
        self._durable = context
        asked = context.tool_confirmation
        super().__init__(
            invocation,
            function_call_id=context.function_call_id,
            attempt_count=context.attempt,
            tool_confirmation=ToolConfirmation.model_validate(asked.model_dump()) if asked else None,
        )

    @property
    def idempotency_key(self) -> str:
        """See `waystation.tools.ToolContext`."""
        return self._durable.idempotency_key

    @property
    def is_aborted(self) -> bool:
        """Whether the invocation was canceled."""
        return self._durable.is_aborted

    def heartbeat(self, *details: Any) -> None:
        """See `waystation.tools.ToolContext`."""
        self._durable.heartbeat(*details)

    def request_credential(self, auth_config: Any) -> None:
        self._durable.request_credential(_to_config(auth_config))

    def get_auth_response(self, auth_config: Any) -> Any:
        return _from_credential(self._durable.get_auth_response(_to_config(auth_config)))

    async def load_credential(self, auth_config: Any) -> Any:
        return _from_credential(await self._durable.load_credential(_to_config(auth_config)))

    async def save_credential(self, auth_config: Any) -> None:
        await self._durable.save_credential(_to_config(auth_config))

    def record(self) -> None:
        """Write state changes and actions to Waystation's context.

        Raises:
            NotImplementedError: The author's code set `end_invocation`.
        """
        if self._invocation_context.end_invocation:
            raise NotImplementedError(
                "`end_invocation` is not supported: the workflow decides when an invocation ends. Set "
                "`tool_context.actions.escalate` or `skip_summarization`, or return a response from a callback."
            )
        written, actions = self.actions, self._durable.actions
        for key, value in written.state_delta.items():
            self._durable.state[key] = value
        for name in ("skip_summarization", "transfer_to_agent", "transfer_reason", "escalate"):
            if (value := getattr(written, name)) is not None:
                setattr(actions, name, value)
        actions.artifact_delta.update(written.artifact_delta)
        for function_call_id, asked in written.requested_tool_confirmations.items():
            actions.requested_tool_confirmations[function_call_id] = contract.ToolConfirmation.model_validate(
                asked.model_dump()
            )
        actions.render_ui_widgets[:] = [
            widget.model_dump(mode="json", exclude_none=True) for widget in written.render_ui_widgets or ()
        ]


class AdkContexts:
    """Creates google-adk's contexts for the agents of one tree, by name."""

    def __init__(self, plugins: Sequence[Any] = ()) -> None:
        self.agents: dict[str, Any] = {}
        """The agents of the tree."""
        self._plugins = list(plugins)

    def agent(self, name: str) -> Any:
        """Return an agent of the tree. For an agent of Waystation, it only has a name."""
        if name and name not in self.agents:
            self.agents[name] = BaseAgent(name=name)
        return self.agents.get(name)

    def readonly(self, context: ReadonlyContext | None) -> Any:
        """Return google-adk's context for an instruction provider or a toolset."""
        return None if context is None else AdkReadonlyContext(self._invocation(context))

    def of(self, context: ToolContext) -> AdkContext:
        """Return google-adk's context for a tool or callback. It is always the same for the same context."""
        known: AdkContext | None = vars(context).get("_adk")
        if known is None:
            known = vars(context)["_adk"] = AdkContext(context, self._invocation(context))
        return known

    @contextlib.contextmanager
    def using(self, context: ToolContext) -> Iterator[AdkContext]:
        """Provide google-adk's context, and afterwards record what changed, even if the code raised an exception.

        Sync functions that google-adk calls in the block run in threads.
        """
        adk = self.of(context)
        try:
            with _use_sync_callable_runner(_run_in_thread):
                yield adk
        finally:
            adk.record()

    def _invocation(self, context: ReadonlyContext) -> InvocationContext:
        services: dict[str, Any] = {}
        if isinstance(context, ToolContext):
            available = context._services
            services = {
                "artifact_service": _Artifacts(context) if available.artifacts else None,
                "memory_service": _Memory(context) if available.memory else None,
                "credential_service": _Credentials(context) if available.credentials else None,
            }
        config = context.run_config
        invocation = InvocationContext(
            session_service=_Sessions(context.session),
            invocation_id=context.invocation_id,
            branch=context.branch,
            agent=self.agent(context.agent_name),
            user_content=context.user_content,
            session=_create_session(context.session),
            run_config=RunConfig(
                max_llm_calls=config.max_llm_calls if config else 500,
                streaming_mode=StreamingMode(config.streaming_mode.value) if config else StreamingMode.NONE,
                custom_metadata=dict(context.custom_metadata) or None,
            ),
            **services,
        )
        invocation.plugin_manager.plugins.extend(self._plugins)
        return invocation


async def _run_in_thread(target: Any, arguments: dict[str, Any]) -> Any:
    def run() -> Any:
        return target(**arguments)

    with _use_sync_callable_runner(None):
        return await invoke(run, inspect.signature(run).bind())
