"""The managed flow: a credential that is ready for use, or a request for one. Source: adk-semantics 11.2."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from waystation.auth import oauth
from waystation.auth.auth_credential import AuthCredential, AuthCredentialTypes
from waystation.auth.auth_schemes import CustomAuthScheme, OAuthGrantType
from waystation.auth.auth_tool import AuthConfig
from waystation.auth.credential_bucket import Bucket
from waystation.auth.credential_store import CredentialStore
from waystation.auth.service_account import bearer_of

if TYPE_CHECKING:
    from waystation.tools.tool_context import ToolContext

_COMPLETE = (AuthCredentialTypes.API_KEY, AuthCredentialTypes.HTTP)
_CLIENTS = (AuthCredentialTypes.OAUTH2, AuthCredentialTypes.OPEN_ID_CONNECT)


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
        if raw is not None and raw.auth_type in _CLIENTS and raw.oauth2 is None:
            raise ValueError(f"auth_config.raw_credential.oauth2 required for credential type {raw.auth_type.value}")

    async def get_auth_credential(self, context: ToolContext) -> AuthCredential | None:
        """Return a credential that can be used as it is, None when a user has to be asked.

        Raises:
            AuthorizationFailed: A provider gives no token.
        """
        raw = self._config.raw_auth_credential
        if raw is not None and raw.auth_type in _COMPLETE:
            return raw.model_copy(deep=True)
        if raw is not None and raw.service_account is not None:
            return await asyncio.to_thread(bearer_of, raw.service_account)
        if context.has_credential_service:
            found = await context.load_credential(self._config)
            if found is not None:
                return found
        if raw is None or raw.oauth2 is None:
            return None
        if raw.oauth2.access_token and not oauth.expired(raw.oauth2):
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
        store = context.credential_service
        bucket = Bucket.of(context, self._config.key)
        assert self._config.raw_auth_credential is not None
        if not isinstance(store, CredentialStore):
            tokens = oauth.by_client(self._config)
            return self._config.raw_auth_credential.model_copy(update={"oauth2": tokens})
        with store.held(("refresh", *bucket)):  # one fetch for parallel calls
            stored = store.credential(bucket)
            if stored is None or stored.oauth2 is None or oauth.expired(stored.oauth2):
                tokens = oauth.by_client(self._config)
                stored = self._config.raw_auth_credential.model_copy(update={"oauth2": tokens})
                store.keep(bucket, stored)
        return oauth.with_client(self._config, stored)
