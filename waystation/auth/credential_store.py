"""Stores of credentials and of unfinished logins, outside of histories.

Reads and writes block, as they do in keyrings, files and the clients of most secret managers. So synchronous functions
such as ADK's `get_auth_response` can use a store; coroutines use it in threads.

A login belongs to a user and a credential key: all calls that need the same credential share one login, and the user
logs in once. Clients receive no secret of it. The code verifier and the client secret remain in the store until the
login is complete.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit, urlunsplit

import structlog

from waystation.auth import (
    APIKey,
    AuthConfig,
    AuthCredential,
    AuthCredentialTypes,
    BaseCredentialService,
    HttpAuth,
    HTTPBase,
    HttpCredentials,
    OAuth2Auth,
    oauth,
)
from waystation.auth.auth_credential import CredentialPart
from waystation.core import DEFAULT_APP, AuthorizationFailed, JsonObject

if TYPE_CHECKING:
    from waystation.agents.readonly_context import ReadonlyContext

log = structlog.get_logger(__name__)

Place: TypeAlias = tuple[str, ...]
"""The key of a stored value: its kind, then names. Names may have any characters and length."""
KEEP_S = 31 * 24 * 3600.0
"""How long a login may take: one day longer than the default deadline of a call."""
_LOCKS = [threading.RLock() for _ in range(64)]
"""Locks of places. Places that share one may wait for each other."""
_NOT_KEPT = ("client_secret", "code_verifier", "auth_code", "state", "auth_response_uri", "auth_uri")
"""Fields of an OAuth credential that are not stored. The client secret comes from the tool's configuration."""


class Bucket(NamedTuple):
    """The owner of a credential: one user of one application, and the credential key."""

    app: str
    user: str
    key: str

    @classmethod
    def of(cls, context: ReadonlyContext, key: str) -> Bucket:
        """Return the bucket of the context's user."""
        return cls(context.session.app_name or DEFAULT_APP, context.user_id, key)


class WaitingCall(NamedTuple):
    """A call that waits for a credential."""

    invocation_id: str
    function_call_id: str


class Authorized(NamedTuple):
    """The calls that a stored credential is for."""

    calls: tuple[WaitingCall, ...]
    """All calls that wait for the credential. Approve them. The first is the named call, or the earliest one."""
    credential_key: str


class CredentialStore(BaseCredentialService):
    """Base class of credential stores. Subclasses define `read` and `write`.

    Both may block, and any thread may call them. All methods raise `CredentialStoreError` when the store is unavailable
    or damaged.
    """

    @abstractmethod
    def read(self, place: Place) -> str | None:
        """Return the text at a place; None when there is none, or it has expired."""

    @abstractmethod
    def write(self, place: Place, text: str | None, *, keep_s: float | None = None) -> None:
        """Store a text atomically; None removes the stored one. The text expires after `keep_s` seconds."""

    @contextmanager
    def held(self, place: Place) -> Iterator[None]:
        """Lock a place.

        By default for the threads of this process. Stores that processes share override it to lock for all of them.
        """
        with _LOCKS[hash((id(self), *place)) % len(_LOCKS)]:
            yield

    def credential(self, bucket: Bucket) -> AuthCredential | None:
        """Return a stored credential. It may have expired, and lacks the client secret."""
        text = self.read(("credential", *bucket))
        return None if text is None else AuthCredential.model_validate(json.loads(text))

    def keep(self, bucket: Bucket, credential: AuthCredential | None) -> None:
        """Store a credential; None removes the stored one."""
        if credential is not None and credential.oauth2 is not None:
            tokens = credential.oauth2.model_copy(update=dict.fromkeys(_NOT_KEPT))
            credential = credential.model_copy(update={"oauth2": tokens})
        self.write(("credential", *bucket), None if credential is None else json.dumps(credential.exposed()))

    async def load_credential(
        self, auth_config: AuthConfig, callback_context: ReadonlyContext
    ) -> AuthCredential | None:
        """Return the credential of the context's user, refreshed when it has expired; None when there is none.

        Raises:
            AuthorizationFailed: The credential has expired, and the provider does not refresh it.
        """
        return await asyncio.to_thread(load_refreshed, self, auth_config, Bucket.of(callback_context, auth_config.key))

    async def save_credential(self, auth_config: AuthConfig, callback_context: ReadonlyContext) -> None:
        """Store the `exchanged_auth_credential` of a configuration for the context's user."""
        await asyncio.to_thread(
            self.keep, Bucket.of(callback_context, auth_config.key), auth_config.exchanged_auth_credential
        )

    async def authorize(
        self,
        *,
        auth_response_uri: str | None = None,
        credential: AuthCredential | str | None = None,
        call: tuple[str, str] | None = None,
    ) -> Authorized:
        """Store a user's credential: from the URI at which a login ended, or the credential itself.

        Args:
            auth_response_uri: The complete URI to which the provider redirected the user.
            credential: A credential, or its text.
            call: Invocation id and function call id. Optional with a URI, which identifies the login.

        Returns:
            The calls to approve.

        Raises:
            AuthorizationFailed: The login does not belong to this call, or the provider issued no token.
            ValueError: Both or neither of URI and credential are passed, or the credential does not fit the scheme.
        """
        if auth_response_uri is not None and credential is None:
            return await complete_authorization(self, auth_response_uri=auth_response_uri, expected=call)
        if auth_response_uri is None and credential is not None and call is not None:
            return await provide_credential(self, *call, credential)
        raise ValueError("Pass either `auth_response_uri`, or `credential` and `call`.")


class _Login(CredentialPart):
    """An unfinished login as it is stored, with secrets."""

    config: AuthConfig
    calls: list[WaitingCall]
    at: float

    @property
    def client(self) -> OAuth2Auth | None:
        """The OAuth client, with the state and the code verifier of this login."""
        prepared = self.config.exchanged_auth_credential
        return None if prepared is None else prepared.oauth2

    @property
    def state(self) -> str | None:
        return None if self.client is None else self.client.state

    def choose(self, expected: tuple[str, str] | None) -> WaitingCall:
        """Return the expected call, or by default the earliest one."""
        if expected is None:
            return self.calls[0]
        if expected not in self.calls:
            raise AuthorizationFailed(f"This login is not for call {expected[1]!r} of {expected[0]!r}.")
        return WaitingCall(*expected)

    def is_for(self, config: AuthConfig) -> bool:
        """Whether a configuration requests the credential of this login."""
        ours, theirs = self.config.exposed(), config.exposed()
        return all(ours.get(name) == theirs.get(name) for name in ("authScheme", "rawAuthCredential", "credentialKey"))


def load_refreshed(store: CredentialStore, config: AuthConfig, bucket: Bucket) -> AuthCredential | None:
    """Return the credential in a bucket, refreshed when it has expired; None when the user must log in.

    Raises:
        AuthorizationFailed: The credential has expired, and the provider does not refresh it.
    """
    credential = store.credential(bucket)
    if oauth.is_expired(credential):
        with store.held(("refresh", *bucket)):
            credential = store.credential(bucket)  # another call may have refreshed it
            if credential is not None and oauth.is_expired(credential):
                credential = _refresh(store, config, bucket, credential)
    return None if credential is None else oauth.add_client(config, credential)


def _refresh(
    store: CredentialStore, config: AuthConfig, bucket: Bucket, expired: AuthCredential
) -> AuthCredential | None:
    if expired.oauth2 is None or not expired.oauth2.refresh_token:
        return None
    try:
        credential = expired.model_copy(update={"oauth2": oauth.refresh(config, expired.oauth2)})
    except AuthorizationFailed as error:
        if not error.revoked:
            raise
        store.keep(bucket, None)
        log.info("credential.revoked", credential_key=bucket.key)
        return None
    store.keep(bucket, credential)
    log.info("credential.refreshed", credential_key=bucket.key)
    return credential


def begin_login(store: CredentialStore, config: AuthConfig, bucket: Bucket, call: WaitingCall) -> JsonObject:
    """Request a credential from the user; return the login's description for clients, without secrets.

    Raises:
        ValueError: The configuration is incomplete, or its flow has no user.
        AuthorizationFailed: The provider's endpoints cannot be discovered.
    """
    with store.held(("login", *bucket)):
        current = _read_login(store, bucket)
        calls = list(dict.fromkeys([*(current.calls if current else ()), call]))
        if current is not None and current.is_for(config):
            # One login for all calls, and the same one after a crash: its link may be open in a browser.
            login = current.model_copy(update={"calls": calls})
        else:
            login = _Login(config=_add_login_uri(config), calls=calls, at=time.time())
        _write_login(store, bucket, login)
        store.write(("call", *call), json.dumps(bucket), keep_s=KEEP_S)
    return login.config.redacted()


def _add_login_uri(config: AuthConfig) -> AuthConfig:
    """Return the configuration with the login's URI and state, if its scheme has a login."""
    if not oauth.has_login(config):
        return config
    prepared = config.exchanged_auth_credential
    has_uri = prepared is not None and prepared.oauth2 is not None and prepared.oauth2.auth_uri
    source = config.model_copy(update={"raw_auth_credential": prepared}) if has_uri else config
    return config.model_copy(update={"exchanged_auth_credential": oauth.add_authorization_url(source)})


async def complete_authorization(
    store: CredentialStore,
    *,
    auth_response_uri: str | None = None,
    code: str | None = None,
    state: str | None = None,
    redirect_uri: str | None = None,
    expected: tuple[str, str] | None = None,
) -> Authorized:
    """Finish a login: check the state, exchange the code, store the tokens.

    Args:
        store: The workers' store.
        auth_response_uri: The complete URI to which the provider redirected the user. Alternatively pass `code` and
            `state` from it.
        code: The authorization code.
        state: The state.
        redirect_uri: The redirect URI, unless the tool's configuration has it.
        expected: Invocation id and function call id that the login must belong to.

    Returns:
        The calls to approve.

    Raises:
        AuthorizationFailed: No login has this state, the provider refused, or the code is invalid. The message contains
            no secret.
    """
    if auth_response_uri is not None:
        code, state, redirect_uri = _read_response(auth_response_uri, redirect_uri)
    return await asyncio.to_thread(_complete, store, code, state, redirect_uri, expected)


def _complete(
    store: CredentialStore,
    code: str | None,
    state: str | None,
    redirect_uri: str | None,
    expected: tuple[str, str] | None,
) -> Authorized:
    if not code or not state:
        raise AuthorizationFailed("A login's result is a `code` and a `state`. Pass the complete URL of its last page.")
    bucket = _read_bucket(store, ("state", state))
    if bucket is None:
        raise AuthorizationFailed(
            "No login has this state. It is already complete, was replaced by a later login, or was started elsewhere."
        )
    with store.held(("login", *bucket)):
        login = _read_login(store, bucket)
        if login is None or login.client is None or login.state != state:
            raise AuthorizationFailed("This login was replaced by a later one, or is already complete.")
        call = login.choose(expected)
        tokens = oauth.exchange_code(
            login.config,
            code=code,
            code_verifier=login.client.code_verifier,
            redirect_uri=login.client.redirect_uri or redirect_uri,
        )
        assert login.config.exchanged_auth_credential is not None
        credential = login.config.exchanged_auth_credential.model_copy(update={"oauth2": tokens})
        return _finish(store, bucket, login, credential, call)


def _read_response(uri: str, redirect_uri: str | None) -> tuple[str | None, str | None, str]:
    """Return code, state and redirect URI from the URI at which a login ended."""
    try:
        parts = urlsplit(uri.strip())
    except ValueError:
        raise AuthorizationFailed("This is not a valid URL. Pass the URL of the login's last page.") from None
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if error := query.get("error"):
        raise AuthorizationFailed(f"The provider refused the login: {oauth.error_code(error)}.")
    return query.get("code"), query.get("state"), redirect_uri or urlunsplit(parts._replace(query="", fragment=""))


async def provide_credential(
    store: CredentialStore, invocation_id: str, function_call_id: str, credential: AuthCredential | str
) -> Authorized:
    """Store a credential that a user entered: an API key, a bearer token, `user:password`, or an `AuthCredential`.

    Returns:
        The calls to approve.

    Raises:
        AuthorizationFailed: The call does not wait for a credential.
        ValueError: The credential is empty, or does not fit the scheme.
    """
    return await asyncio.to_thread(_provide, store, WaitingCall(invocation_id, function_call_id), credential)


def _provide(store: CredentialStore, call: WaitingCall, credential: AuthCredential | str) -> Authorized:
    bucket = find_bucket(store, call)
    if bucket is None:
        raise AuthorizationFailed(
            f"Call {call.function_call_id!r} of {call.invocation_id!r} has requested no credential in this store. "
            "Use the same store as the workers."
        )
    with store.held(("login", *bucket)):
        login = _read_login(store, bucket)
        if login is None:
            raise AuthorizationFailed(f"Call {call.function_call_id!r} already has its credential.")
        if isinstance(credential, str):
            credential = _parse_credential(login.config, credential)
        return _finish(store, bucket, login, credential, login.choose(call))


def _parse_credential(config: AuthConfig, text: str) -> AuthCredential:
    """Parse a text into a credential for the configuration's scheme."""
    if not text.strip():
        raise ValueError("The credential is empty.")
    match config.auth_scheme:
        case APIKey():
            return AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=text)
        case HTTPBase(scheme=scheme):
            content = HttpCredentials(token=text)
            if scheme.lower() == "basic":
                user, colon, password = text.partition(":")
                if not colon:
                    raise ValueError("Write a credential for the scheme `basic` as `user:password`.")
                content = HttpCredentials(username=user, password=password)
            http = HttpAuth(scheme=scheme, credentials=content)
            return AuthCredential(auth_type=AuthCredentialTypes.HTTP, http=http)
        case _:
            return AuthCredential(auth_type=AuthCredentialTypes.OAUTH2, oauth2=OAuth2Auth(access_token=text))


def find_bucket(store: CredentialStore, call: WaitingCall) -> Bucket | None:
    """Return the bucket of the credential that a call has requested; None when it has requested none."""
    return _read_bucket(store, ("call", *call))


def _finish(
    store: CredentialStore, bucket: Bucket, login: _Login, credential: AuthCredential, call: WaitingCall
) -> Authorized:
    store.keep(bucket, credential)
    _write_login(store, bucket, None)
    return Authorized((call, *(other for other in login.calls if other != call)), bucket.key)


def _read_bucket(store: CredentialStore, place: Place) -> Bucket | None:
    text = store.read(place)
    return None if text is None else Bucket(*json.loads(text))


def _read_login(store: CredentialStore, bucket: Bucket) -> _Login | None:
    text = store.read(("login", *bucket))
    login = None if text is None else _Login.model_validate_json(text)
    return login if login is not None and login.at + KEEP_S > time.time() else None


def _write_login(store: CredentialStore, bucket: Bucket, login: _Login | None) -> None:
    """Replace the login of a bucket; None removes it."""
    previous = _read_login(store, bucket)
    if previous is not None and previous.state and (login is None or login.state != previous.state):
        store.write(("state", previous.state), None)
    store.write(("login", *bucket), None if login is None else json.dumps(login.exposed()), keep_s=KEEP_S)
    if login is not None and login.state:
        store.write(("state", login.state), json.dumps(bucket), keep_s=KEEP_S)
