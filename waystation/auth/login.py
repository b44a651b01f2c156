"""From a tool's request to a credential in the store.

A login is kept under whose it is, so that all calls which need the same credential share one, and one visit to the
provider serves them all. What a client is shown of it has no secret; the code verifier and the client's secret stay in
the store until the login is complete.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlsplit, urlunsplit

import structlog
from pydantic import BaseModel

from waystation.auth import oauth
from waystation.auth.auth_credential import AuthCredential, AuthCredentialTypes, HttpAuth, HttpCredentials, OAuth2Auth
from waystation.auth.auth_schemes import APIKey, HTTPBase
from waystation.auth.auth_tool import AuthConfig
from waystation.auth.credential_bucket import Bucket
from waystation.core.errors import AuthorizationFailed
from waystation.core.payload import JsonObject

if TYPE_CHECKING:
    from waystation.auth.credential_store import CredentialStore
    from waystation.core.secrets import Secret

log = structlog.get_logger(__name__)

KEEP_S = 31 * 24 * 3600.0
"""How long a login may take: a day more than a call waits unless configured."""


class WaitingCall(NamedTuple):
    """A call that waits for a credential."""

    invocation_id: str
    function_call_id: str


class Authorized(NamedTuple):
    """What a credential was kept for."""

    invocation_id: str
    function_call_id: str
    """The call that asked first, or the one that was named: to be answered with `approve`."""
    others: tuple[WaitingCall, ...]
    """Further calls that wait for the same credential."""
    credential_key: str

    @property
    def calls(self) -> tuple[WaitingCall, ...]:
        """All calls to be answered."""
        return (WaitingCall(self.invocation_id, self.function_call_id), *self.others)


class _Login(BaseModel):
    """As it is kept; with secrets."""

    config: JsonObject
    calls: list[WaitingCall]
    at: float

    @property
    def asked(self) -> AuthConfig:
        return AuthConfig.model_validate(self.config)


def found(store: CredentialStore, config: AuthConfig, bucket: Bucket) -> AuthCredential | None:
    """Return the credential in a bucket, refreshed when it has expired; None when a user has to be asked.

    Raises:
        AuthorizationFailed: It has expired, and the provider does not answer.
    """
    stored = store.credential(bucket)
    if _stale(stored):
        with store.held(("refresh", *bucket)):
            stored = store.credential(bucket)  # somebody else may have refreshed it meanwhile
            if _stale(stored):
                stored = _refreshed(store, config, bucket, stored)
    return None if stored is None else oauth.with_client(config, stored)


def _stale(stored: AuthCredential | None) -> bool:
    return stored is not None and stored.oauth2 is not None and oauth.expired(stored.oauth2)


def _refreshed(
    store: CredentialStore, config: AuthConfig, bucket: Bucket, stored: AuthCredential | None
) -> AuthCredential | None:
    if stored is None or stored.oauth2 is None or not stored.oauth2.refresh_token:
        return None
    try:
        new = stored.model_copy(update={"oauth2": oauth.refreshed(config, stored.oauth2)})
    except AuthorizationFailed as error:
        if not error.revoked:
            raise
        store.keep(bucket, None)
        log.info("credential.revoked", credential_key=bucket.key)
        return None
    store.keep(bucket, new)
    log.info("credential.refreshed", credential_key=bucket.key)
    return new


def requested(store: CredentialStore, config: AuthConfig, bucket: Bucket, call: WaitingCall) -> JsonObject:
    """Have a user asked for a credential; return what clients are shown, without secrets.

    Raises:
        ValueError: The configuration does not say enough, or needs no user.
        AuthorizationFailed: The provider's endpoints are not known.
    """
    with store.held(("login", *bucket)):
        current = _login(store, bucket)
        if current is not None and _same_request(current.asked, config):
            # One login for all who ask, and the same one again after a crash: its link may be open in a browser.
            calls = list(dict.fromkeys([*current.calls, call]))
            login = current.model_copy(update={"calls": calls})
        else:
            calls = list(dict.fromkeys([*(current.calls if current else ()), call]))
            login = _Login(config=_prepared(config).exposed(), calls=calls, at=time.time())
        asked = login.asked
        _keep_login(store, bucket, login)
        store.write(("call", *call), _joined(bucket), keep_s=KEEP_S)
    return asked.redacted()


def _same_request(prepared: AuthConfig, config: AuthConfig) -> bool:
    ours, theirs = prepared.exposed(), config.exposed()
    return all(ours.get(name) == theirs.get(name) for name in ("authScheme", "rawAuthCredential", "credentialKey"))


def _prepared(config: AuthConfig) -> AuthConfig:
    """Return the configuration with the login's URI and state, when a user has to log in."""
    given = config.exchanged_auth_credential
    if not oauth.needs_login(config):
        return config
    if given is not None and given.oauth2 is not None and given.oauth2.auth_uri:
        raw = given.model_copy(deep=True)
    else:
        oauth.client_of(config)
        assert config.raw_auth_credential is not None
        raw = config.raw_auth_credential.model_copy(deep=True)
    source = config.model_copy(update={"raw_auth_credential": raw})
    raw.oauth2 = oauth.authorization_url(source)
    return config.model_copy(update={"exchanged_auth_credential": raw})


async def complete_authorization(
    store: CredentialStore,
    *,
    auth_response_uri: str | None = None,
    code: str | None = None,
    state: str | None = None,
    redirect_uri: str | None = None,
    expected: tuple[str, str] | None = None,
) -> Authorized:
    """Finish a login: check the state, exchange the code, keep the tokens.

    Args:
        store: The store that the workers use.
        auth_response_uri: The whole URI to which the provider sent the user; or else `code` and `state` from it.
        code: The authorisation code.
        state: The state.
        redirect_uri: Where the user was sent, when the tool's configuration does not say.
        expected: The invocation and the call that the login must be for.

    Returns:
        Which calls to answer with `approve`.

    Raises:
        AuthorizationFailed: No login has this state, the provider refused, or the code is not valid. The message has
            no secret.
    """
    return await asyncio.to_thread(_completed, store, auth_response_uri, code, state, redirect_uri, expected)


def _completed(
    store: CredentialStore,
    uri: str | None,
    code: str | None,
    state: str | None,
    redirect_uri: str | None,
    expected: tuple[str, str] | None,
) -> Authorized:
    if uri is not None:
        code, state, redirect_uri = _read(uri, redirect_uri)
    if not code or not state:
        raise AuthorizationFailed("A login ends with a `code` and a `state`; give the whole address of its last page.")
    kept = store.read(("state", state))
    if kept is None:
        raise AuthorizationFailed(
            "No login has this state: it is complete already, has been replaced by a later one, or was not begun here."
        )
    bucket = _split(kept)
    with store.held(("login", *bucket)):
        login = _login(store, bucket)
        asked = login.asked if login is not None else None
        made = asked.exchanged_auth_credential if asked is not None else None
        if login is None or asked is None or made is None or made.oauth2 is None or made.oauth2.state != state:
            raise AuthorizationFailed("This login was replaced by a later one, or is complete already.")
        first = _first(login, expected)
        tokens = oauth.by_code(
            asked,
            code=code,
            code_verifier=made.oauth2.code_verifier,
            redirect_uri=made.oauth2.redirect_uri or redirect_uri,
        )
        return _kept(store, bucket, login, AuthCredential(auth_type=made.auth_type, oauth2=tokens), first)


def _read(uri: str, redirect_uri: str | None) -> tuple[str | None, str | None, str]:
    try:
        parts = urlsplit(uri.strip())
    except ValueError:
        raise AuthorizationFailed("This is no address; give that of the page at which the login ended.") from None
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if error := query.get("error"):
        known = error if error.replace("_", "").isalpha() and len(error) <= 40 else "with an error"
        raise AuthorizationFailed(f"The provider refused the login: {known}.")
    return query.get("code"), query.get("state"), redirect_uri or urlunsplit(parts._replace(query="", fragment=""))


async def provide_credential(
    store: CredentialStore, invocation_id: str, function_call_id: str, credential: AuthCredential | str
) -> Authorized:
    """Keep a credential that a user gave by hand: an API key, a bearer token, `user:password`, or any credential.

    Returns:
        Which calls to answer with `approve`.

    Raises:
        AuthorizationFailed: The call has asked for none.
        ValueError: The credential is empty, or of no kind that the scheme takes.
    """
    return await asyncio.to_thread(_provided, store, WaitingCall(invocation_id, function_call_id), credential)


def _provided(store: CredentialStore, call: WaitingCall, credential: AuthCredential | str) -> Authorized:
    bucket = bucket_of(store, call)
    if bucket is None:
        raise AuthorizationFailed(
            f"Call {call.function_call_id!r} of {call.invocation_id!r} has asked for no credential in this store; "
            "is it the one that the workers use?"
        )
    with store.held(("login", *bucket)):
        login = _login(store, bucket)
        if login is None:
            raise AuthorizationFailed(f"Call {call.function_call_id!r} has been given its credential already.")
        if isinstance(credential, str):
            credential = from_text(login.asked, credential)
        return _kept(store, bucket, login, credential, _first(login, call))


def from_text(config: AuthConfig, text: str | Secret) -> AuthCredential:
    """Return the credential that a text is, as its scheme wants it."""
    if not text.strip():
        raise ValueError("An empty text is no credential.")
    match config.auth_scheme:
        case APIKey():
            return AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key=text)
        case HTTPBase(scheme=scheme):
            user, colon, password = text.partition(":")
            if scheme.lower() == "basic" and not colon:
                raise ValueError("A credential for the scheme `basic` is written `user:password`.")
            basic = scheme.lower() == "basic"
            held = HttpCredentials(username=user, password=password) if basic else HttpCredentials(token=text)
            return AuthCredential(auth_type=AuthCredentialTypes.HTTP, http=HttpAuth(scheme=scheme, credentials=held))
        case _:
            return AuthCredential(auth_type=AuthCredentialTypes.OAUTH2, oauth2=OAuth2Auth(access_token=text))


def bucket_of(store: CredentialStore, call: WaitingCall) -> Bucket | None:
    """Return what a call has asked for, None when it has asked for nothing."""
    kept = store.read(("call", *call))
    return None if kept is None else _split(kept)


def _kept(
    store: CredentialStore, bucket: Bucket, login: _Login, credential: AuthCredential, first: WaitingCall
) -> Authorized:
    store.keep(bucket, credential)
    _forget_login(store, bucket, login)
    return Authorized(*first, tuple(call for call in login.calls if call != first), bucket.key)


def _first(login: _Login, expected: tuple[str, str] | None) -> WaitingCall:
    if expected is None:
        return login.calls[0]
    if expected not in login.calls:
        raise AuthorizationFailed(f"This login is not for call {expected[1]!r} of {expected[0]!r}.")
    return WaitingCall(*expected)


def _login(store: CredentialStore, bucket: Bucket) -> _Login | None:
    text = store.read(("login", *bucket))
    login = None if text is None else _Login.model_validate_json(text)
    return login if login is not None and login.at + KEEP_S > time.time() else None


def _keep_login(store: CredentialStore, bucket: Bucket, login: _Login) -> None:
    previous = _login(store, bucket)
    if previous is not None and _state(previous) != _state(login):
        _forget_login(store, bucket, previous)
    store.write(("login", *bucket), login.model_dump_json(), keep_s=KEEP_S)
    if state := _state(login):
        store.write(("state", state), _joined(bucket), keep_s=KEEP_S)


def _forget_login(store: CredentialStore, bucket: Bucket, login: _Login) -> None:
    store.write(("login", *bucket), None)
    if state := _state(login):
        store.write(("state", state), None)


def _state(login: _Login) -> str | None:
    made = login.asked.exchanged_auth_credential
    return made.oauth2.state if made is not None and made.oauth2 is not None else None


def _joined(bucket: Bucket) -> str:
    return json.dumps(bucket)


def _split(text: str) -> Bucket:
    return Bucket(*json.loads(text))
