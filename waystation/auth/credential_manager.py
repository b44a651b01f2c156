"""The managed flow: a credential that is ready for use, or a request for one. Source: adk-semantics 11.2.

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
from waystation.core import AuthorizationFailed, digest

if TYPE_CHECKING:
    from waystation.tools.tool_context import ToolContext

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
EARLY_S = 300.0
"""A token is fetched anew so long before it expires, as in ADK."""
USUAL_S = 3600.0

_google_tokens: dict[str, tuple[str, float]] = {}
_google_lock = Lock()


class CredentialManager:
    """Obtains what one configuration needs; for tools that do their own running."""

    def __init__(self, auth_config: AuthConfig) -> None:
        """Check the configuration.

        Raises:
            ValueError: It can never give a credential.
        """
        self._config = auth_config
        raw = auth_config.raw_auth_credential
        if isinstance(auth_config.auth_scheme, CustomAuthScheme):
            kind = auth_config.auth_scheme.type_
            raise ValueError(f"The auth scheme {kind!r} is none of OpenAPI's; fetch its credential in the tool itself.")
        if raw is None and oauth.needs_login(auth_config):
            # ADK's wire literals, here and below.
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
        """Return a credential that can be used as it is, None when a user has to be asked.

        Raises:
            AuthorizationFailed: A provider gives no token.
        """
        raw = self._config.raw_auth_credential
        if raw is not None and raw.auth_type in (AuthCredentialTypes.API_KEY, AuthCredentialTypes.HTTP):
            return raw.model_copy(deep=True)
        if raw is not None and raw.service_account is not None:
            return await asyncio.to_thread(_google_bearer, raw.service_account)
        if context.has_credential_service:
            found = await context.load_credential(self._config)
            if found is not None:
                return found
        if raw is None or raw.oauth2 is None:
            return None
        if raw.oauth2.access_token and not oauth.is_expired(raw):
            return raw.model_copy(deep=True)
        return await asyncio.to_thread(self._by_client, context)

    async def request_credential(self, context: ToolContext) -> None:
        """Have the user asked.

        Raises:
            ValueError: This is not a tool call, or there is no credential service.
        """
        # In a thread, since the provider may have to be asked where it is.
        await asyncio.to_thread(context.request_credential, self._config)

    def _by_client(self, context: ToolContext) -> AuthCredential | None:
        """Return a token for the client itself, when that is the scheme's flow."""
        if oauth.endpoints(self._config).grant is not OAuthGrantType.CLIENT_CREDENTIALS:
            return None
        raw, store = self._config.raw_auth_credential, context.credential_service
        assert raw is not None
        if not isinstance(store, CredentialStore):
            return raw.model_copy(update={"oauth2": oauth.fetch_for_client(self._config)})
        bucket = Bucket.of(context, self._config.key)
        with store.held(("refresh", *bucket)):  # one fetch for parallel calls
            stored = store.credential(bucket)
            if stored is None or stored.oauth2 is None or oauth.is_expired(stored):
                stored = raw.model_copy(update={"oauth2": oauth.fetch_for_client(self._config)})
                store.keep(bucket, stored)
        return oauth.with_client(self._config, stored)


def _google_bearer(account: ServiceAccount) -> AuthCredential:
    """Return a bearer token of a service account. Blocks while it is fetched.

    Raises:
        AuthorizationFailed: There is no such account, or Google gives no token.
    """
    key = digest(account.exposed())
    token, until = _google_tokens.get(key, ("", 0.0))
    if time.time() >= until - EARLY_S:
        with _google_lock:
            token, until = _google_tokens.get(key, ("", 0.0))
            if time.time() >= until - EARLY_S:
                token, until = _google_tokens[key] = _fetch_google_token(account)
    return AuthCredential(
        auth_type=AuthCredentialTypes.HTTP,
        http=HttpAuth(scheme="bearer", credentials=HttpCredentials(token=token)),
    )


def _fetch_google_token(account: ServiceAccount) -> tuple[str, float]:
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        credentials = _google_credentials(account, Request())
        credentials.refresh(Request())
    except (GoogleAuthError, ValueError) as error:
        # Only the type: google-auth quotes the answers of token endpoints.
        which = account.service_account_credential
        who = which.client_email if which else "the default credential"
        raise AuthorizationFailed(f"Google gave no token for {who} ({type(error).__name__}).") from None
    # google-auth's times are in UTC without saying so.
    expiry = credentials.expiry
    until = expiry.replace(tzinfo=UTC).timestamp() if expiry is not None else time.time() + USUAL_S
    return str(credentials.token), until


def _google_credentials(account: ServiceAccount, request: Any) -> Any:
    import google.auth
    from google.oauth2 import id_token, service_account

    key = account.service_account_credential
    if key is None and account.use_id_token:
        fetch: Any = id_token.fetch_id_token_credentials  # google-auth has no types
        return fetch(account.audience, request=request)
    if key is None:
        return google.auth.default(scopes=account.scopes or [CLOUD_PLATFORM])[0]
    # Under the names of Google's key files, which are those of the fields.
    info = {name.rstrip("_"): getattr(key, name) for name in type(key).model_fields}
    keys: Any = service_account
    if account.use_id_token:
        return keys.IDTokenCredentials.from_service_account_info(info, target_audience=account.audience)
    return keys.Credentials.from_service_account_info(info, scopes=account.scopes)
