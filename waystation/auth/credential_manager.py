"""Obtain a ready-to-use credential, or request one from the user.

Tokens for Google service accounts are fetched with google-auth.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC
from threading import Lock
from typing import TYPE_CHECKING, Any

from waystation.auth import (
    AuthConfig,
    AuthCredential,
    AuthCredentialTypes,
    Bucket,
    CredentialStore,
    CustomAuthScheme,
    HttpAuth,
    HttpCredentials,
    OAuthGrantType,
    ServiceAccount,
    oauth,
)
from waystation.core.errors import AuthorizationFailed
from waystation.core.payload import digest

if TYPE_CHECKING:
    from waystation.tools.tool_context import ToolContext

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
EARLY_S = 300.0
"""A Google token is replaced when it expires within this many seconds, as in ADK."""
USUAL_S = 3600.0
"""The assumed lifetime, in seconds, of a Google token that has no expiry time."""

_google_tokens: dict[str, tuple[str, float]] = {}
_google_lock = Lock()


class CredentialManager:
    """Obtains the credential for one configuration. Use it in tools that implement `run_async` themselves."""

    def __init__(self, auth_config: AuthConfig) -> None:
        """Check the configuration.

        Raises:
            ValueError: The configuration cannot produce a credential.
        """
        self._config = auth_config
        raw = auth_config.raw_auth_credential
        if isinstance(auth_config.auth_scheme, CustomAuthScheme):
            kind = auth_config.auth_scheme.type_
            raise ValueError(f"The auth scheme {kind!r} is not an OpenAPI scheme. Fetch its credential in the tool.")
        if raw is None and oauth.has_login(auth_config):
            # These messages are the same as in ADK.
            kind = auth_config.auth_scheme.type_.value
            raise ValueError(f"raw_auth_credential is required for auth_scheme type {kind}")
        if (
            raw is not None
            and raw.oauth2 is None
            and raw.auth_type
            in (
                AuthCredentialTypes.OAUTH2,
                AuthCredentialTypes.OPEN_ID_CONNECT,
            )
        ):
            raise ValueError(f"auth_config.raw_credential.oauth2 required for credential type {raw.auth_type.value}")

    async def get_auth_credential(self, context: ToolContext) -> AuthCredential | None:
        """Return a ready-to-use credential, or None if the user must provide one.

        Raises:
            AuthorizationFailed: The provider did not issue a token.
        """
        raw = self._config.raw_auth_credential
        if raw is not None and raw.auth_type in (AuthCredentialTypes.API_KEY, AuthCredentialTypes.HTTP):
            return raw.model_copy(deep=True)
        if raw is not None and raw.service_account is not None:
            return await asyncio.to_thread(_load_google_bearer, raw.service_account)
        if context.has_credential_service:
            credential = await context.load_credential(self._config)
            if credential is not None:
                return credential
        if raw is None or raw.oauth2 is None:
            return None
        if raw.oauth2.access_token and not oauth.is_expired(raw):
            return raw.model_copy(deep=True)
        return await asyncio.to_thread(self._load_client_token, context)

    async def request_credential(self, context: ToolContext) -> None:
        """Request the credential from the user.

        Raises:
            ValueError: The context is not that of a tool call, or there is no credential service.
        """
        # Run in a thread, because discovering the provider's endpoints may block.
        await asyncio.to_thread(context.request_credential, self._config)

    def _load_client_token(self, context: ToolContext) -> AuthCredential | None:
        """Return a credential with a token for the client itself, or None if the scheme does not use the client
        credentials flow.
        """
        if oauth.find_endpoints(self._config).grant is not OAuthGrantType.CLIENT_CREDENTIALS:
            return None
        raw, store = self._config.raw_auth_credential, context.credential_service
        assert raw is not None
        if not isinstance(store, CredentialStore):
            return raw.model_copy(update={"oauth2": oauth.fetch_for_client(self._config)})
        bucket = Bucket.of(context, self._config.key)
        store.register(bucket)
        with store.held(("refresh", *bucket)):  # parallel calls share one fetch
            credential = store.credential(bucket)
            if credential is None or credential.oauth2 is None or oauth.is_expired(credential):
                credential = raw.model_copy(update={"oauth2": oauth.fetch_for_client(self._config)})
                store.keep(bucket, credential)
        return oauth.add_client(self._config, credential)


def _load_google_bearer(account: ServiceAccount) -> AuthCredential:
    """Return a credential with a bearer token for a service account. Blocks while a new token is fetched.

    Raises:
        AuthorizationFailed: The account does not exist, or Google did not issue a token.
    """
    key = digest(account.exposed())
    token, expires_at = _google_tokens.get(key, ("", 0.0))
    if time.time() >= expires_at - EARLY_S:
        with _google_lock:
            token, expires_at = _google_tokens.get(key, ("", 0.0))
            if time.time() >= expires_at - EARLY_S:
                token, expires_at = _google_tokens[key] = _fetch_google_token(account)
    return AuthCredential(
        auth_type=AuthCredentialTypes.HTTP,
        http=HttpAuth(scheme="bearer", credentials=HttpCredentials(token=token)),
    )


def _fetch_google_token(account: ServiceAccount) -> tuple[str, float]:
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        credentials = _make_google_credentials(account, Request())
        credentials.refresh(Request())
    except (GoogleAuthError, ValueError) as error:
        # Report only the error's type, because messages from google-auth quote responses of token endpoints.
        key = account.service_account_credential
        name = key.client_email if key else "the default credential"
        raise AuthorizationFailed(f"Google did not issue a token for {name} ({type(error).__name__}).") from None
    # google-auth returns naive datetimes in UTC.
    expiry = credentials.expiry
    expires_at = expiry.replace(tzinfo=UTC).timestamp() if expiry is not None else time.time() + USUAL_S
    return str(credentials.token), expires_at


def _make_google_credentials(account: ServiceAccount, request: Any) -> Any:
    import google.auth
    from google.oauth2 import id_token, service_account

    key = account.service_account_credential
    if key is None and account.use_id_token:
        fetch: Any = id_token.fetch_id_token_credentials  # google-auth has no types
        return fetch(account.audience, request=request)
    if key is None:
        return google.auth.default(scopes=account.scopes or [CLOUD_PLATFORM])[0]
    # The fields have the same names as in Google's key files.
    info = {name.rstrip("_"): getattr(key, name) for name in type(key).model_fields}
    keys: Any = service_account
    if account.use_id_token:
        return keys.IDTokenCredentials.from_service_account_info(info, target_audience=account.audience)
    return keys.Credentials.from_service_account_info(info, scopes=account.scopes)
