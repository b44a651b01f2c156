"""Stores for credentials and unfinished logins, which are kept out of histories.

Reads and writes block, as they do for files and most secret managers. This lets synchronous functions such as
ADK's `get_auth_response` use a store. Coroutines call it in threads.

A login belongs to a user and a credential key. All calls that need the same credential share one login, so the user
logs in only once. Clients never receive its secrets: the code verifier and the client secret stay in the store until
the login is complete.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit, urlunsplit

import structlog

from waystation import auth
from waystation.auth import oauth
from waystation.auth.credential_service.base_credential_service import BaseCredentialService
from waystation.core.contract import DEFAULT_APP
from waystation.core.errors import AuthorizationFailed, CredentialStoreError, InvalidConfiguration, StoreFailed
from waystation.core.payload import JsonObject
from waystation.storage import KeyDeleted, Owner, decrypt_file, encrypt_file, find_user_keys

if TYPE_CHECKING:
    from waystation.auth import AuthConfig, AuthCredential, OAuth2Auth
    from waystation.tools import ReadonlyContext

log = structlog.get_logger(__name__)

Place: TypeAlias = tuple[str, ...]
"""The key of a stored value: its kind, followed by names. Names may contain any characters and have any length."""
KEEP_S = 31 * 24 * 3600.0
"""How long a pending login is stored, in seconds: one day longer than the default deadline of a call."""
LOCK_LIMIT_S = 60.0
"""How long to wait for a lock on a place, in seconds. It is held while a token is refreshed."""
_LOCKS = [threading.RLock() for _ in range(64)]
"""Locks for places in a store. Places that share a lock wait for each other."""
_NOT_KEPT = ("client_secret", "code_verifier", "auth_code", "state", "auth_response_uri", "auth_uri")
"""Fields of an OAuth credential that are not stored. The client secret is taken from the tool's configuration."""


class Bucket(NamedTuple):
    """Identifies a stored credential by application, user and credential key."""

    app: str
    user: str
    key: str

    @classmethod
    def of(cls, context: ReadonlyContext, key: str) -> Bucket:
        """Return the bucket for the context's user and a credential key."""
        return cls(context.session.app_name or DEFAULT_APP, context.user_id, key)


class WaitingCall(NamedTuple):
    """A call that is waiting for a credential."""

    invocation_id: str
    function_call_id: str


class Authorized(NamedTuple):
    """The calls that were waiting for a credential, which is now stored."""

    calls: tuple[WaitingCall, ...]
    """All calls that were waiting for the credential. Approve each of them. The first is the call that was passed, or
    the earliest if none was passed.
    """
    credential_key: str


class CredentialStore(BaseCredentialService):
    """Base class of credential stores. Subclasses define `read` and `write`.

    Both methods may block and must be thread-safe. All methods raise `CredentialStoreError` if the store is unavailable
    or damaged.
    """

    @abstractmethod
    def read(self, place: Place) -> str | None:
        """Return the value stored at a place, or None if there is none or it has expired."""

    @abstractmethod
    def write(self, place: Place, text: str | None, *, keep_s: float | None = None) -> None:
        """Store a value atomically, or remove it if `text` is None.

        The value expires after `keep_s` seconds, or never if `keep_s` is None.
        """

    @contextmanager
    def held(self, place: Place) -> Iterator[None]:
        """Lock a place during a `with` block.

        The default implementation locks out other threads of this process. A store that several processes share must
        override this method to lock out the other processes too.

        Raises:
            CredentialStoreError: The lock is still held after `LOCK_LIMIT_S`.
        """
        lock = _LOCKS[hash((id(self), *place)) % len(_LOCKS)]
        if not lock.acquire(timeout=LOCK_LIMIT_S):
            raise CredentialStoreError(f"Another thread has held the lock on a credential for {LOCK_LIMIT_S:g} s.")
        try:
            yield
        finally:
            lock.release()

    def credential(self, bucket: Bucket) -> AuthCredential | None:
        """Return the stored credential, or None if there is none.

        The credential may have expired, and an OAuth credential does not contain the client secret.
        """
        text = _read_encrypted(self, ("credential", *bucket), bucket)
        return None if text is None else auth.AuthCredential.model_validate(json.loads(text))

    def keep(self, bucket: Bucket, credential: AuthCredential | None) -> None:
        """Store a credential, or remove the stored one if `credential` is None."""
        if credential is not None and credential.oauth2 is not None:
            tokens = credential.oauth2.model_copy(update=dict.fromkeys(_NOT_KEPT))
            credential = credential.model_copy(update={"oauth2": tokens})
        text = None if credential is None else json.dumps(credential.exposed())
        _write_encrypted(self, ("credential", *bucket), bucket, text)

    def register(self, bucket: Bucket) -> None:
        """Add a bucket to the list of its user's buckets, which `delete_user` needs. Call this before `keep`."""
        place = ("buckets", bucket.user)
        if bucket not in self._read_buckets(bucket.user):
            with self.held(place):
                self.write(place, json.dumps([*self._read_buckets(bucket.user), bucket]))

    def _read_buckets(self, user: str) -> list[Bucket]:
        return [Bucket(*names) for names in json.loads(self.read(("buckets", user)) or "[]")]

    async def list_user_apps(self, *, user_id: str) -> list[str]:
        """Return the names of the apps in which a user has, or had, credentials."""
        return sorted({bucket.app for bucket in await asyncio.to_thread(self._read_buckets, user_id)})

    async def delete_user(self, *, app_name: str, user_id: str, dry_run: bool = False) -> int:
        """Delete all credentials and unfinished logins of a user in an app. Return their number.

        With `dry_run`, only count them.
        """
        return await asyncio.to_thread(_delete_user, self, app_name, user_id, dry_run)

    async def load_credential(
        self, auth_config: AuthConfig, callback_context: ReadonlyContext
    ) -> AuthCredential | None:
        """Return the credential of the context's user, refreshed if it has expired, or None if the user must log in.

        Raises:
            AuthorizationFailed: The credential has expired and could not be refreshed, although it was not revoked.
        """
        return await asyncio.to_thread(load_refreshed, self, auth_config, Bucket.of(callback_context, auth_config.key))

    async def save_credential(self, auth_config: AuthConfig, callback_context: ReadonlyContext) -> None:
        """Store the `exchanged_auth_credential` of a configuration for the context's user."""
        bucket = Bucket.of(callback_context, auth_config.key)
        await asyncio.to_thread(self.register, bucket)
        await asyncio.to_thread(self.keep, bucket, auth_config.exchanged_auth_credential)

    async def authorize(
        self,
        *,
        auth_response_uri: str | None = None,
        credential: AuthCredential | str | None = None,
        call: tuple[str, str] | None = None,
    ) -> Authorized:
        """Store a user's credential, passed either directly or as the URI where the login ended.

        Args:
            auth_response_uri: The complete URI that the provider redirected the user to.
            credential: A credential, or the text of one.
            call: The invocation ID and function call ID. Optional with a URI, which already identifies the login.

        Returns:
            The calls to approve.

        Raises:
            AuthorizationFailed: The login is not pending or not for this call, or the provider did not issue a token.
            ValueError: Not exactly one of URI and credential is passed, a credential is passed without `call`, or it
                does not match the scheme.
        """
        if auth_response_uri is not None and credential is None:
            return await complete_authorization(self, auth_response_uri=auth_response_uri, expected=call)
        if auth_response_uri is None and credential is not None and call is not None:
            return await provide_credential(self, *call, credential)
        raise ValueError("Pass either `auth_response_uri`, or `credential` and `call`.")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Login:
    """An unfinished login, including secrets."""

    config: AuthConfig
    calls: list[WaitingCall]
    at: float

    @classmethod
    def parse(cls, text: str) -> _Login:
        """Parse the stored form."""
        stored = json.loads(text)
        calls = [WaitingCall(*call) for call in stored["calls"]]
        return cls(config=auth.AuthConfig.model_validate(stored["config"]), calls=calls, at=stored["at"])

    def exposed(self) -> JsonObject:
        """Return the stored form, including all secrets."""
        return {"config": self.config.exposed(), "calls": self.calls, "at": self.at}

    @property
    def client(self) -> OAuth2Auth | None:
        """The OAuth client, with the state and the code verifier of this login, or None if the scheme has no login."""
        prepared = self.config.exchanged_auth_credential
        return None if prepared is None else prepared.oauth2

    @property
    def state(self) -> str | None:
        return None if self.client is None else self.client.state

    def choose(self, expected: tuple[str, str] | None) -> WaitingCall:
        """Return the expected call, or the earliest call if `expected` is None.

        Raises:
            AuthorizationFailed: The login is not for the expected call.
        """
        if expected is None:
            return self.calls[0]
        if expected not in self.calls:
            raise AuthorizationFailed(f"This login is not for call {expected[1]!r} of {expected[0]!r}.")
        return WaitingCall(*expected)

    def is_for(self, config: AuthConfig) -> bool:
        """Return whether this login provides the credential that a configuration requests."""
        ours, theirs = self.config.exposed(), config.exposed()
        return all(ours.get(name) == theirs.get(name) for name in ("authScheme", "rawAuthCredential", "credentialKey"))


def load_refreshed(store: CredentialStore, config: AuthConfig, bucket: Bucket) -> AuthCredential | None:
    """Return the credential in a bucket, refreshed if it has expired, or None if the user must log in.

    Raises:
        AuthorizationFailed: The credential has expired and could not be refreshed, although it was not revoked.
    """
    credential = store.credential(bucket)
    if oauth.is_expired(credential):
        store.register(bucket)
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
    """Request a credential from the user, or add the call to a pending request for the same credential.

    Return the description of the login for clients, without secrets.

    Raises:
        ValueError: The configuration is incomplete, or its OAuth flow does not involve a user.
        AuthorizationFailed: The provider's endpoints cannot be discovered.
    """
    store.register(bucket)
    with store.held(("login", *bucket)):
        current = _read_login(store, bucket)
        calls = list(dict.fromkeys([*(current.calls if current else ()), call]))
        if current is not None and current.is_for(config):
            # Keep the existing login, for all calls and after a crash, because its link may be open in a browser.
            login = replace(current, calls=calls)
        else:
            login = _Login(config=_add_login_uri(config), calls=calls, at=time.time())
        _write_login(store, bucket, login)
        store.write(("call", *call), json.dumps(bucket), keep_s=KEEP_S)
    return login.config.redacted()


def _add_login_uri(config: AuthConfig) -> AuthConfig:
    """Return the configuration with the login's URI and state added, if its scheme requires a login."""
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
    """Finish a login: check the state, exchange the code and store the tokens.

    Args:
        store: The credential store that the workers use.
        auth_response_uri: The complete URI that the provider redirected the user to. Alternatively, pass its `code` and
            `state`.
        code: The authorization code, if `auth_response_uri` is not passed.
        state: The state, if `auth_response_uri` is not passed.
        redirect_uri: The redirect URI, if neither the tool's configuration nor `auth_response_uri` contains it.
        expected: The invocation ID and function call ID that the login must belong to.

    Returns:
        The calls to approve.

    Raises:
        AuthorizationFailed: No pending login has this state, the login is not for the expected call, the provider
            refused it, or the code is invalid. The message does not contain secrets.
    """
    issuer: str | None = None
    if auth_response_uri is not None:
        code, state, issuer, redirect_uri = _read_response(auth_response_uri, redirect_uri)
    return await asyncio.to_thread(_complete, store, code, state, issuer, redirect_uri, expected)


def _complete(
    store: CredentialStore,
    code: str | None,
    state: str | None,
    issuer: str | None,
    redirect_uri: str | None,
    expected: tuple[str, str] | None,
) -> Authorized:
    if not code or not state:
        raise AuthorizationFailed(
            "The URL must contain a `code` and a `state`. Pass the complete URL of the login's last page."
        )
    bucket = _read_bucket(store, ("state", state))
    if bucket is None:
        raise AuthorizationFailed(
            "No pending login has this state. The login is already complete, was replaced by a later one, or was "
            "started elsewhere."
        )
    with store.held(("login", *bucket)):
        login = _read_login(store, bucket)
        if login is None or login.client is None or login.state != state:
            raise AuthorizationFailed("This login was replaced by a later one, or is already complete.")
        call = login.choose(expected)
        _check_issuer(issuer, oauth.find_issuer(login.config))
        tokens = oauth.exchange_code(
            login.config,
            code=code,
            code_verifier=login.client.code_verifier,
            redirect_uri=login.client.redirect_uri or redirect_uri,
        )
        assert login.config.exchanged_auth_credential is not None
        credential = login.config.exchanged_auth_credential.model_copy(update={"oauth2": tokens})
        return _finish(store, bucket, login, credential, call)


def _check_issuer(issuer: str | None, expected: str | None) -> None:
    """Check that a login ended at the provider where it began (RFC 9207), if both issuers are known.

    Without this check, a malicious provider could redirect the user to another provider and receive its code.
    """
    if issuer and expected and issuer.rstrip("/") != expected.rstrip("/"):
        raise AuthorizationFailed(f"The login ended at another provider than {expected}. Start the login again.")


def _read_response(uri: str, redirect_uri: str | None) -> tuple[str | None, str | None, str | None, str]:
    """Return the code, state, issuer and redirect URI from the URI where a login ended.

    If `redirect_uri` is set, it is returned instead of the one from the URI.
    """
    try:
        parts = urlsplit(uri.strip())
    except ValueError:
        raise AuthorizationFailed("This is not a valid URL. Pass the URL of the login's last page.") from None
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if error := query.get("error"):
        raise AuthorizationFailed(f"The provider refused the login: {oauth.error_code(error)}.")
    ended_at = redirect_uri or urlunsplit(parts._replace(query="", fragment=""))
    return query.get("code"), query.get("state"), query.get("iss"), ended_at


async def provide_credential(
    store: CredentialStore, invocation_id: str, function_call_id: str, credential: AuthCredential | str
) -> Authorized:
    """Store a credential that a user entered: an API key, a bearer token, `user:password`, or an `AuthCredential`.

    Returns:
        The calls to approve.

    Raises:
        AuthorizationFailed: The call is not waiting for a credential.
        ValueError: The credential is empty, or does not match the scheme.
    """
    return await asyncio.to_thread(_provide, store, WaitingCall(invocation_id, function_call_id), credential)


def _provide(store: CredentialStore, call: WaitingCall, credential: AuthCredential | str) -> Authorized:
    bucket = find_bucket(store, call)
    if bucket is None:
        raise AuthorizationFailed(
            f"Call {call.function_call_id!r} of {call.invocation_id!r} has not requested a credential in this store. "
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
    """Convert text to a credential for the configuration's scheme."""
    if not text.strip():
        raise ValueError("The credential is empty.")
    match config.auth_scheme:
        case auth.APIKey():
            return auth.AuthCredential(auth_type=auth.AuthCredentialTypes.API_KEY, api_key=text)
        case auth.HTTPBase(scheme=scheme):
            content = auth.HttpCredentials(token=text)
            if scheme.lower() == "basic":
                user, colon, password = text.partition(":")
                if not colon:
                    raise ValueError("A credential for the scheme `basic` must have the form `user:password`.")
                content = auth.HttpCredentials(username=user, password=password)
            http = auth.HttpAuth(scheme=scheme, credentials=content)
            return auth.AuthCredential(auth_type=auth.AuthCredentialTypes.HTTP, http=http)
        case _:
            return auth.AuthCredential(
                auth_type=auth.AuthCredentialTypes.OAUTH2, oauth2=auth.OAuth2Auth(access_token=text)
            )


def find_bucket(store: CredentialStore, call: WaitingCall) -> Bucket | None:
    """Return the bucket of the credential that a call has requested, or None if it has not requested one."""
    return _read_bucket(store, ("call", *call))


def _finish(
    store: CredentialStore, bucket: Bucket, login: _Login, credential: AuthCredential, call: WaitingCall
) -> Authorized:
    store.keep(bucket, credential)
    _write_login(store, bucket, None)
    return Authorized((call, *(other for other in login.calls if other != call)), bucket.key)


def _read_encrypted(store: CredentialStore, place: Place, bucket: Bucket) -> str | None:
    """Return the text that `_write_encrypted` stored, or None if there is none or the user's key was deleted."""
    text = store.read(place)
    if text is None or text.startswith("{"):  # JSON that was stored without a user key
        return text
    try:
        return decrypt_file(json.dumps(place), base64.b64decode(text)).decode()
    except KeyDeleted:
        return None
    except (ValueError, StoreFailed, InvalidConfiguration) as error:
        problem = f"The credential {bucket.key!r} of user {bucket.user!r} cannot be decrypted: {error}"
        raise CredentialStoreError(problem) from None


def _write_encrypted(
    store: CredentialStore, place: Place, bucket: Bucket, text: str | None, *, keep_s: float | None = None
) -> None:
    """Store a JSON object, encrypted with the user's key if there is a store of user keys, or remove it.

    The key is deleted with the user's data, which makes copies of the credential store unreadable.
    """
    try:
        if text is not None and find_user_keys() is not None:
            data = encrypt_file(json.dumps(place), text.encode(), Owner(bucket.app, bucket.user))
            text = base64.b64encode(data).decode()
    except (StoreFailed, InvalidConfiguration) as error:
        raise CredentialStoreError(f"The credential {bucket.key!r} cannot be encrypted: {error}") from None
    store.write(place, text, keep_s=keep_s)


def _read_bucket(store: CredentialStore, place: Place) -> Bucket | None:
    text = store.read(place)
    return None if text is None else Bucket(*json.loads(text))


def _read_login(store: CredentialStore, bucket: Bucket) -> _Login | None:
    text = _read_encrypted(store, ("login", *bucket), bucket)
    login = None if text is None else _Login.parse(text)
    return login if login is not None and login.at + KEEP_S > time.time() else None


def _write_login(store: CredentialStore, bucket: Bucket, login: _Login | None) -> None:
    """Replace the login of a bucket, or remove it if `login` is None."""
    previous = _read_login(store, bucket)
    if previous is not None and previous.state and (login is None or login.state != previous.state):
        store.write(("state", previous.state), None)
    text = None if login is None else json.dumps(login.exposed())
    _write_encrypted(store, ("login", *bucket), bucket, text, keep_s=KEEP_S)
    if login is not None and login.state:
        store.write(("state", login.state), json.dumps(bucket), keep_s=KEEP_S)


def _delete_user(store: CredentialStore, app: str, user: str, dry_run: bool) -> int:
    place = ("buckets", user)
    buckets, count = [bucket for bucket in store._read_buckets(user) if bucket.app == app], 0
    for bucket in buckets:
        with store.held(("login", *bucket)):
            login = _read_login(store, bucket)
            count += (store.read(("credential", *bucket)) is not None) + (login is not None)
            if not dry_run:
                store.keep(bucket, None)
                _write_login(store, bucket, None)
                for call in login.calls if login else ():
                    store.write(("call", *call), None)
    if not dry_run and buckets:
        with store.held(place):
            rest = [bucket for bucket in store._read_buckets(user) if bucket.app != app]
            store.write(place, json.dumps(rest) if rest else None)
    return count
