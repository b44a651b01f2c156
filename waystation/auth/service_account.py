"""Tokens for Google service accounts, fetched with google-auth."""

from __future__ import annotations

import time
from datetime import UTC
from threading import Lock
from typing import Any

from waystation.auth.auth_credential import (
    AuthCredential,
    AuthCredentialTypes,
    HttpAuth,
    HttpCredentials,
    ServiceAccount,
)
from waystation.core.errors import AuthorizationFailed
from waystation.core.payload import digest

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
EARLY_S = 300.0
"""A token is fetched anew so long before it expires, as in ADK."""
USUAL_S = 3600.0

_tokens: dict[str, tuple[str, float]] = {}
_guard = Lock()


def bearer_of(account: ServiceAccount) -> AuthCredential:
    """Return a bearer token of a service account. Blocks while it is fetched.

    Raises:
        AuthorizationFailed: There is no such account, or Google gives no token.
    """
    key = digest(account.exposed())
    token, until = _tokens.get(key, ("", 0.0))
    if time.time() >= until - EARLY_S:
        with _guard:
            token, until = _tokens.get(key, ("", 0.0))
            if time.time() >= until - EARLY_S:
                token, until = _tokens[key] = _fetched(account)
    held = HttpAuth(scheme="bearer", credentials=HttpCredentials(token=token))
    return AuthCredential(auth_type=AuthCredentialTypes.HTTP, http=held)


def _fetched(account: ServiceAccount) -> tuple[str, float]:
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        credentials = _credentials(account, Request())
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


def _credentials(account: ServiceAccount, request: Any) -> Any:
    from google.oauth2 import service_account

    by_id: Any = service_account.IDTokenCredentials  # of which mypy finds no types
    by_access: Any = service_account.Credentials

    given = account.service_account_credential
    # Under the names of Google's key files, which are those of the fields.
    info = {name.rstrip("_"): getattr(given, name) for name in type(given).model_fields} if given is not None else {}
    if account.use_id_token:
        if given is None:
            from google.oauth2 import id_token

            fetching: Any = id_token
            return fetching.fetch_id_token_credentials(account.audience, request=request)
        return by_id.from_service_account_info(info, target_audience=account.audience)
    if given is None:
        import google.auth

        return google.auth.default(scopes=account.scopes or [CLOUD_PLATFORM])[0]
    return by_access.from_service_account_info(info, scopes=account.scopes)
