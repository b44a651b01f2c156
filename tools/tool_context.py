"""The context of a tool call or callback: state, actions, artifacts, memory and credentials.

As in ADK, tools and callbacks share one class that has three names. Method names, signatures and messages match ADK.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, MutableMapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from waystation import auth
from waystation.core.contract import NO_ACTIONS, EventActions, ToolConfirmation
from waystation.core.errors import StoreFailed, WaystationError
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject, to_plain_json
from waystation.core.secrets import mask, token_parts
from waystation.storage import retrying
from waystation.tools import NO_SERVICES, ReadonlyContext, Services, State

if TYPE_CHECKING:
    from google.genai.types import Part

    from waystation.artifacts import ArtifactVersion, BaseArtifactService
    from waystation.auth import AuthConfig, AuthCredential, BaseCredentialService, CredentialStore
    from waystation.events import Event
    from waystation.memory import MemoryEntry, SearchMemoryResponse

P = ParamSpec("P")
T = TypeVar("T")


class Actions(BaseModel):
    """The EventActions of a tool call, with the field names of ADK. Setting any other field raises ValidationError."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", validate_assignment=True)

    skip_summarization: bool | None = None
    transfer_to_agent: str | None = None
    transfer_reason: str | None = None
    escalate: bool | None = None
    # Use factories, because pydantic takes ten times as long to copy a mutable default.
    artifact_delta: dict[str, int] = Field(default_factory=dict)
    requested_tool_confirmations: dict[str, ToolConfirmation] = Field(default_factory=dict)
    requested_auth_configs: dict[str, JsonObject] = Field(default_factory=dict)
    render_ui_widgets: list[JsonObject] = Field(default_factory=list)

    _state: State = PrivateAttr(default_factory=State)

    @classmethod
    def over(cls, state: State) -> Actions:
        """Return empty actions whose `state_delta` reads from and writes to `state`."""
        actions = cls()
        actions._state = state
        return actions

    @property
    def state_delta(self) -> MutableMapping[str, Any]:
        """The state changes that this call has made so far. Writing to this mapping writes to the state."""
        return _StateDelta(self._state)

    def recorded(self) -> EventActions:
        """Return the actions to record.

        Raises:
            NotJson: A key, or a value that was modified in place, cannot be represented as JSON.
            ValidationError: A dictionary contains a value of the wrong type.
        """
        delta, removed = self._state.delta()
        actions = {name: value for name, value in self if value is not None and value != {} and value != []}
        if not (actions or delta or removed):
            return NO_ACTIONS
        # Convert to JSON first, because pydantic silently changes a lone surrogate in a key of dict[str, int].
        return EventActions(state_delta=delta, removed_keys=removed, **to_plain_json(actions))


class _StateDelta(MutableMapping[str, Any]):
    """A mutable view of the changed part of a state."""

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


class NotAwaited(WaystationError):
    """An async method of the context was called without `await`.

    Write `await` before the call, in an `async def` function.
    """

    def __init__(self, *methods: str) -> None:
        self.methods = methods
        names = ", ".join(f"`{name}`" for name in methods)
        super().__init__(
            f"The call to {names} of the context did nothing, because it was not awaited. "
            f"Write `await tool_context.{methods[0]}(...)` in a tool that is an `async def` function."
        )


class _ActionContext(ReadonlyContext):
    """A context with actions."""

    function_call_id: Final[str | None] = None
    """ID of the function call, or None in agent and model callbacks."""
    function_call_event_id: Final[str | None] = None
    """The same ID under another name, which ADK's guide uses."""
    idempotency_key: Final[str] = ""
    """The same for all attempts of this call, even after a reset. Pass it to services that accept such keys."""

    def __init__(
        self,
        *,
        function_call_id: str | None = None,
        idempotency_key: str = "",
        store_retry_s: float = 0.0,
        services: Services = NO_SERVICES,
        **about: Any,
    ) -> None:
        """Initialize the context. `about` is passed on to `ReadonlyContext`.

        If a store is not available, the context's async methods repeat their requests for `store_retry_s`.
        """
        super().__init__(**about)
        self._services, self._store_retry_s = services, store_retry_s
        vars(self).update(
            function_call_id=function_call_id,
            function_call_event_id=function_call_id,
            idempotency_key=idempotency_key,
        )
        self._acts: Actions | None = None
        self._first = threading.Lock()
        self._coroutines: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        """Names and coroutines of the async methods that were called."""

    @property
    def actions(self) -> Actions:
        """The call's effects other than its result."""
        # Create the actions on first use, from any thread, because most calls only return a result.
        with self._first:
            if self._acts is None:
                self._acts = Actions.over(self._state)
            return self._acts

    def recorded_actions(self) -> EventActions:
        """Return the actions and state changes to record.

        Raises:
            NotJson: A key, or a value that was modified in place, cannot be represented as JSON.
            ValidationError: A dictionary in `actions` contains a value of the wrong type.
        """
        untouched = self._acts is None and not self._state.has_delta()
        return NO_ACTIONS if untouched else self.actions.recorded()

    def _require_service(self, service: T | None, missing: str) -> T:
        if service is None:
            raise ValueError(missing)
        return retrying(service, self._store_retry_s)

    def not_awaited(self) -> NotAwaited | None:
        """Return an error that names the async methods called without `await`, or None. Close their coroutines."""
        forgotten: dict[str, None] = {}
        for name, coroutine in self._coroutines:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                forgotten[name] = coroutine.close()  # otherwise Python prints a warning later
        return NotAwaited(*forgotten) if forgotten else None


C = TypeVar("C", bound=_ActionContext)


def _must_be_awaited(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """Record calls to an async method, so that a forgotten `await` can be reported when the tool returns."""

    @functools.wraps(method)
    def call(context: C, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        coroutine = method(context, *args, **kwargs)
        context._coroutines.append((method.__name__, coroutine))
        return coroutine

    return call


def _require(valid: bool, method: str, name: str, value: object, remedy: str) -> None:
    """Check an argument early, because a later error would point into Waystation's code instead of the user's.

    Raises:
        TypeError: The argument is not valid.
    """
    if not valid:
        raise TypeError(f"`{name}` of `{method}` is {reprlib.repr(value)}; use {remedy}.")


def _require_text(method: str, name: str, value: object) -> None:
    _require(isinstance(value, str), method, name, value, "text")


def _require_version(method: str, value: object) -> None:
    _require(isinstance(value, int | None), method, "version", value, "a whole number, or None for the latest")


def _require_list(method: str, name: str, value: object, kind: str) -> None:
    remedy = f"a list of {kind} objects"
    _require(isinstance(value, Iterable) and not isinstance(value, str), method, name, value, remedy)
    # Check for an attribute, because ADK's types are accepted too. Skip iterators, which can be read only once.
    for item in value if isinstance(value, list | tuple) else ():
        if not hasattr(item, "content"):
            raise TypeError(f"`{name}` of `{method}` contains {reprlib.repr(item)}; use {remedy}.")


def _to_config(method: str, value: object) -> AuthConfig:
    if (config := auth.AuthConfig.of(value)) is None:  # the value is not quoted, because it may contain a credential
        raise TypeError(f"`auth_config` of `{method}` is {with_article(value)}; use an AuthConfig.")
    return config


class _ArtifactContext(_ActionContext):
    """Artifacts: named files with versions.

    Artifacts belong to the session, or to the user if the name has the prefix `user:`. If an invocation does not have
    a session, its artifacts belong to the invocation.
    """

    def __init__(self, **about: Any) -> None:
        """Initialize the context. `about` is passed on to the base class."""
        super().__init__(**about)
        self._saved: Counter[str] = Counter()

    @_must_be_awaited
    async def list_artifacts(self) -> list[str]:
        """Return the sorted names of the session's and the user's artifacts.

        Raises:
            ValueError: The worker has no artifact service.
        """
        return await self._artifacts().list_artifact_keys(**self._session_scope())

    @_must_be_awaited
    async def load_artifact(self, filename: str, version: int | None = None) -> Part | None:
        """Return a version of an artifact, by default the latest, or None if it was never saved.

        Raises:
            StoreFailed: This conversation saved that version, but the store does not have it.
            ValueError: The worker has no artifact service.
        """
        _require_text("load_artifact", "filename", filename)
        _require_version("load_artifact", version)
        service = self._artifacts()
        artifact = await service.load_artifact(**self._session_scope(), filename=filename, version=version)
        if artifact is not None:
            return artifact
        deltas = (event.actions.artifact_delta for event in self.session.given_events)
        saved = max((delta[filename] for delta in deltas if filename in delta), default=-1)
        if (saved if version is None else version) in range(saved + 1):
            raise StoreFailed(
                getattr(service, "place", type(self._services.artifacts).__name__),
                f"This conversation saved {filename!r}, but the store does not have it. Use the same --artifacts for "
                "all workers.",
            )
        return None

    @_must_be_awaited
    async def save_artifact(
        self, filename: str, artifact: Part | dict[str, Any], custom_metadata: dict[str, Any] | None = None
    ) -> int:
        """Save a new version of an artifact, record it in `actions.artifact_delta`, and return the version number.

        A retry does not save the same content again. The first save under a name returns the version that the first
        save under that name returned in the earlier attempt, and so on for later saves.

        Raises:
            InputValidationError: The Part has no content that can be stored.
            ValueError: The worker has no artifact service.
        """
        _require_text("save_artifact", "filename", filename)
        service = self._artifacts()
        number = self._saved[filename]
        self._saved[filename] += 1
        request: dict[str, Any] = {
            **self._session_scope(),
            "filename": filename,
            "artifact": artifact,
            "custom_metadata": custom_metadata,
        }
        # Services written for ADK do not have this method.
        if self.idempotency_key and hasattr(service, "save_artifact_once"):
            key = f"{self.idempotency_key}#{number}"
            version = await service.save_artifact_once(**request, idempotency_key=key)
        else:
            version = await service.save_artifact(**request)
        self.actions.artifact_delta[filename] = version
        return version

    @_must_be_awaited
    async def get_artifact_version(self, filename: str, version: int | None = None) -> ArtifactVersion | None:
        """Return the metadata of an artifact version, by default the latest, or None if it does not exist.

        Raises:
            ValueError: The worker has no artifact service.
        """
        _require_text("get_artifact_version", "filename", filename)
        _require_version("get_artifact_version", version)
        return await self._artifacts().get_artifact_version(**self._session_scope(), filename=filename, version=version)

    def _artifacts(self) -> BaseArtifactService:
        return self._require_service(self._services.artifacts, "Artifact service is not initialized.")

    def _session_scope(self) -> dict[str, str]:
        return {"app_name": self.session.app_name, "user_id": self.user_id, "session_id": self.session.id}


class _MemoryContext(_ActionContext):
    """Access to the user's memories, which are shared by all of the user's sessions."""

    @_must_be_awaited
    async def search_memory(self, query: str) -> SearchMemoryResponse:
        """Return the user's memories that match `query`, which can be any string.

        Raises:
            ValueError: The worker has no memory service.
        """
        _require_text("search_memory", "query", query)
        service = self._require_service(self._services.memory, "Memory service is not available.")
        return await service.search_memory(**self._user(), query=query)

    @_must_be_awaited
    async def add_session_to_memory(self) -> None:
        """Add this session's conversation to memory. Later calls add only the new events.

        Raises:
            ValueError: The worker has no memory service.
        """
        service = self._require_service(
            self._services.memory, "Cannot add session to memory: memory service is not available."
        )
        await service.add_session_to_memory(self.session)

    @_must_be_awaited
    async def add_events_to_memory(
        self, *, events: Sequence[Event], custom_metadata: Mapping[str, object] | None = None
    ) -> None:
        """Add the given events of this session to memory.

        Raises:
            ValueError: The worker has no memory service.
        """
        _require_list("add_events_to_memory", "events", events, "Event")
        service = self._require_service(
            self._services.memory, "Cannot add events to memory: memory service is not available."
        )
        await service.add_events_to_memory(
            **self._user(), session_id=self.session.id, events=events, custom_metadata=custom_metadata
        )

    @_must_be_awaited
    async def add_memory(
        self, *, memories: Sequence[MemoryEntry], custom_metadata: Mapping[str, object] | None = None
    ) -> None:
        """Add memories directly, rather than from the events of a conversation.

        Raises:
            ValueError: The worker has no memory service.
        """
        _require_list("add_memory", "memories", memories, "MemoryEntry")
        service = self._require_service(self._services.memory, "Cannot add memory: memory service is not available.")
        await service.add_memory(**self._user(), memories=memories, custom_metadata=custom_metadata)

    @_must_be_awaited
    async def delete_memory(self, memory_id: str | None = None) -> None:
        """Delete one of the user's memories. `memory_id` is the `id` of a search result.

        Raises:
            ValueError: The worker has no memory service.
        """
        service = self._require_service(self._services.memory, "Cannot delete memory: memory service is not available.")
        await service.delete_memory(**self._user(), memory_id=memory_id)

    def _user(self) -> dict[str, str]:
        return {"app_name": self.session.app_name, "user_id": self.user_id}


class _CredentialContext(_ActionContext):
    """Requests and reads credentials, which never appear in the history, state, logs or traces.

    ADK's credential methods are sync, so they read the store wherever the tool runs: in the tool's thread or, for an
    async tool, on the worker's event loop. Reading takes less than a millisecond unless a token must be refreshed. If
    an async tool must never block the event loop, await `load_credential` instead.
    """

    _credentials: tuple[AuthCredential, ...] = ()
    """The credentials that this context has returned so far."""

    @property
    def credential_service(self) -> BaseCredentialService | None:
        """The worker's credential service, or None if it does not have one."""
        return self._services.credentials

    @property
    def has_credential_service(self) -> bool:
        """Whether the worker has a credential service."""
        return self._services.credentials is not None

    def request_credential(self, auth_config: AuthConfig | JsonObject) -> None:
        """Ask the user for a credential. The tool should then return an interim response for the model.

        When the credential arrives, the tool runs again from the start and reads the credential with
        `get_auth_response`. As in ADK, the tool also runs again if an answer merely claims that the credential is
        available.

        Raises:
            ValueError: This is not a tool call, there is no credential service, or the configuration is incomplete.
            AuthorizationFailed: The provider's endpoints are unknown.
        """
        function_call_id = self.function_call_id
        if function_call_id is None:
            raise ValueError(
                "request_credential requires function_call_id: only a tool call can wait for a credential. Elsewhere, "
                "use load_credential and save_credential."
            )
        auth_config = _to_config("request_credential", auth_config)
        self.actions.requested_auth_configs[function_call_id] = auth.begin_login(
            self._store("request_credential"),
            auth_config,
            auth.Bucket.of(self, auth_config.key),
            auth.WaitingCall(self.invocation_id, function_call_id),
        )

    def get_auth_response(self, auth_config: AuthConfig | JsonObject) -> AuthCredential | None:
        """Return the user's credential, or None if it is not available yet. An expired token is refreshed.

        Credentials from earlier invocations are found too.

        Raises:
            AuthorizationFailed: The credential has expired, and the provider does not respond.
        """
        auth_config = _to_config("get_auth_response", auth_config)
        if not self.has_credential_service:
            return None
        bucket = auth.Bucket.of(self, auth_config.key)
        return self.note_credential(auth.load_refreshed(self._store("get_auth_response"), auth_config, bucket))

    @property
    def auth_response(self) -> AuthCredential | None:
        """The credential that this call requested in an earlier run, or None until the credential arrives."""
        function_call_id = self.function_call_id
        if function_call_id is None or not self.has_credential_service:
            return None
        store = self._store("auth_response")
        bucket = auth.find_bucket(store, auth.WaitingCall(self.invocation_id, function_call_id))
        return None if bucket is None else self.note_credential(store.credential(bucket))

    async def load_credential(self, auth_config: AuthConfig | JsonObject) -> AuthCredential | None:
        """Return the user's credential, or None if there is none. An expired token is refreshed.

        Raises:
            ValueError: The worker has no credential service.
            AuthorizationFailed: The credential has expired, and the provider does not respond.
        """
        auth_config = _to_config("load_credential", auth_config)
        return self.note_credential(await self._service().load_credential(auth_config, self))

    async def save_credential(self, auth_config: AuthConfig | JsonObject) -> None:
        """Store the configuration's `exchanged_auth_credential` for the user.

        Raises:
            ValueError: The worker has no credential service.
        """
        auth_config = _to_config("save_credential", auth_config)
        await self._service().save_credential(auth_config, self)

    def get_credential(self, key: str) -> AuthCredential | None:
        """Return the credential stored for the user under a key, or None. The credential may have expired."""
        _require_text("get_credential", "key", key)
        if not self.has_credential_service:
            return None
        return self.note_credential(self._store("get_credential").credential(auth.Bucket.of(self, key)))

    def secrets_given(self) -> Iterator[str]:
        """Yield the secrets in all credentials that this context has returned. They are masked in recorded values."""
        for credential in self._credentials:
            yield from credential.secrets()

    def note_credential(self, credential: AuthCredential | None) -> AuthCredential | None:
        """Return `credential`, and have its secrets masked in the recorded values of this call."""
        if credential is not None:
            self._credentials = (*self._credentials, credential)
        return credential

    def _service(self) -> BaseCredentialService:
        # This message is the same as in ADK.
        return self._require_service(self._services.credentials, "Credential service is not initialized.")

    def _store(self, member: str) -> CredentialStore:
        self._service()
        service = self._services.credentials
        if not isinstance(service, auth.CredentialStore):
            raise ValueError(
                f"{member} needs a CredentialStore, but the worker has a {type(service).__name__}; await "
                "load_credential and save_credential instead."
            )
        return service


class ToolContext(_ArtifactContext, _MemoryContext, _CredentialContext):
    """The context of one tool call or callback: identity, state, actions and services.

    All arguments have defaults, so a test can call a tool with `ToolContext(state={"cart": []})`.
    """

    attempt: Final[int] = 1
    """The number of this attempt at running the call, starting at 1."""
    attempt_count: Final[int] = 1
    """ADK's name for the same number."""
    tool_confirmation: Final[ToolConfirmation | None] = None
    """The approver's answer about this call, or None if no approver was asked."""

    def __init__(
        self,
        *,
        attempt: int = 1,
        tool_confirmation: ToolConfirmation | None = None,
        heartbeat: Callable[..., None] | None = None,
        is_aborted: Callable[[], bool] | None = None,
        make_completion_url: Callable[[timedelta | None], str] | None = None,
        **about: Any,
    ) -> None:
        """Initialize the context. `heartbeat` and `is_aborted` must be safe to call from any thread.

        `about` can contain `function_call_id`, `idempotency_key` and the arguments of `ReadonlyContext`.
        """
        super().__init__(**about)
        self._heartbeat = heartbeat
        self._is_aborted, self._make_completion_url = is_aborted, make_completion_url
        self._completion_urls: tuple[str, ...] = ()
        self.lacks_credential: Final = threading.Event()
        """Set while Waystation obtains the tool's credential, and if that failed. The tool's own work has not begun."""
        vars(self).update(attempt=attempt, attempt_count=attempt, tool_confirmation=tool_confirmation)

    @property
    def state(self) -> State:
        """The session state. Changes are recorded with the call's response."""
        return self._state

    @property
    def is_aborted(self) -> bool:
        """Whether the invocation was canceled. Long-running loops should check this and return."""
        return self._is_aborted is not None and self._is_aborted()

    def heartbeat(self, *details: Any) -> None:
        """Report that the tool is alive. The server keeps `details` for a while and may pass them to the next attempt.

        Raises:
            NotJson: A detail cannot be represented as JSON, or is a credential.
        """
        checked = to_plain_json({"heartbeat": list(details)})["heartbeat"]
        if self._heartbeat is not None:
            self._heartbeat(*mask(checked, self._completion_urls))

    def completion_url(self, lifetime: timedelta | None = None) -> str:
        """Return the URL with which the machine that answers this call completes it, or reports its progress.

        The URL is a secret. Pass it to the machine, and nowhere else: anyone who has it can answer the call. It is
        masked in what is recorded of this call. All attempts receive the same URL.

        Args:
            lifetime: How long the URL is valid, counted from the start of the call. By default, until the call's
                deadline.

        Raises:
            ValueError: The tool has no `answered_by`, or the worker has no key for completion URLs.
        """
        if self._make_completion_url is None:
            raise ValueError("There is no completion URL here. Only a tool that a worker runs can have one.")
        url = self._make_completion_url(lifetime)
        # Also mask the token and its parts, which a tool may have taken out of the URL.
        self._completion_urls = (*self._completion_urls, url, *token_parts(url.rpartition("/")[2]))
        return url

    def secrets_given(self) -> Iterator[str]:
        """Yield the secrets that this context has returned. They are masked in recorded values."""
        yield from super().secrets_given()
        yield from self._completion_urls

    def request_confirmation(self, *, hint: str | None = None, payload: Any = None) -> None:
        """Ask an approver to confirm this call. The tool should then return an interim response for the model.

        After the approver has answered, even with a rejection, the tool runs again from the start and can read the
        answer from `tool_confirmation`.

        Raises:
            ValueError: This is not a tool call.
            NotJson: The payload cannot be represented as JSON.
        """
        if self.function_call_id is None:
            raise ValueError("request_confirmation requires function_call_id: only a tool call can be confirmed.")
        self.actions.requested_tool_confirmations[self.function_call_id] = ToolConfirmation(
            hint=hint or "", payload=to_plain_json({"payload": payload})["payload"]
        )

    def render_ui_widget(self, widget: Any) -> None:
        """Attach a widget to the event, for clients to render.

        Args:
            widget: A pydantic model or dictionary. Its `id` must be unique within the event.

        Raises:
            TypeError: The widget does not become a JSON object.
            ValueError: The event already has a widget with this ID.
            NotJson: The widget cannot be represented as JSON.
        """
        widget_json: JsonObject = to_plain_json({"widget": widget})["widget"]
        if not isinstance(widget_json, dict):
            raise TypeError(f"`widget` of `render_ui_widget` is {reprlib.repr(widget)}; use an object with an `id`.")
        if any(widget_json.get("id") == other.get("id") for other in self.actions.render_ui_widgets):
            raise ValueError(f"Widget ID {widget_json.get('id')!r} is already in use; give each widget a unique `id`.")
        self.actions.render_ui_widgets.append(widget_json)


Context = ToolContext
CallbackContext = ToolContext
