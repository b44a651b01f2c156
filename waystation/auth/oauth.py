"""Send requests to OAuth 2 providers: authorization code with PKCE, refresh, and client credentials.

These functions use authlib's blocking client. Credential stores and google-auth block too, so everything runs in
threads, and the same lock works for coroutines and synchronous tools. Errors never contain text from a provider,
because it may quote the request.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from waystation import auth
from waystation.core.errors import AuthorizationFailed
from waystation.core.secrets import is_private_url
from waystation.tls import default_ssl_context

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import OAuth2Client  # type: ignore[import-untyped]  # it has no types

    from waystation.auth import AuthConfig, AuthCredential, OAuth2, OAuth2Auth, OAuthGrantType

TIMEOUT_S = 10.0
"""Timeout of one request to a login provider, in seconds."""
LEEWAY_S = 60
"""An access token is refreshed if it expires within this many seconds."""
_ENDPOINTS = ("authorization_endpoint", "token_endpoint")
_ERROR_CODE = re.compile(r"[a-z_]{1,40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoints:
    """A provider's endpoints, and the grant type to use."""

    grant: OAuthGrantType
    authorization: str = ""
    token: str
    refresh: str
    scopes: tuple[str, ...] = ()


def has_login(config: AuthConfig) -> bool:
    """Return whether the scheme is OAuth 2 or OpenID Connect."""
    return isinstance(config.auth_scheme, auth.OAuth2 | auth.OpenIdConnect | auth.OpenIdConnectWithConfig)


def find_endpoints(config: AuthConfig) -> Endpoints:
    """Return the endpoints of a scheme. Look up missing endpoints in the issuer's metadata.

    Raises:
        ValueError: The scheme does not have a supported flow.
        AuthorizationFailed: The metadata is unavailable or invalid.
    """
    scheme: Any = config.auth_scheme
    match scheme:
        case auth.OAuth2():
            return _find_flow_endpoints(scheme)
        case auth.OpenIdConnectWithConfig():
            authorization, token = scheme.authorization_endpoint, scheme.token_endpoint
        case auth.OpenIdConnect():
            metadata = _fetch_metadata([scheme.openIdConnectUrl], issuer=_parse_issuer(scheme.openIdConnectUrl))
            authorization, token = metadata["authorization_endpoint"], metadata["token_endpoint"]
        case _:
            raise ValueError(
                f"A scheme of type {getattr(scheme.type_, 'value', scheme.type_)!r} does not support logins."
            )
    # Use getattr, because an OpenIdConnect keeps unknown fields and may have these too.
    has_client_credentials = "client_credentials" in (getattr(scheme, "grant_types_supported", None) or ())
    return Endpoints(
        grant=auth.OAuthGrantType.CLIENT_CREDENTIALS
        if has_client_credentials
        else auth.OAuthGrantType.AUTHORIZATION_CODE,
        authorization=authorization,
        token=token,
        refresh=token,
        scopes=tuple(getattr(scheme, "scopes", None) or ()),
    )


def _find_flow_endpoints(scheme: OAuth2) -> Endpoints:
    # As in ADK, client credentials come first, because they do not require a user.
    if client := scheme.flows.clientCredentials:
        token = client.tokenUrl or _discover(scheme, "token_endpoint")
        return Endpoints(
            grant=auth.OAuthGrantType.CLIENT_CREDENTIALS, token=token, refresh=token, scopes=tuple(client.scopes)
        )
    if code := scheme.flows.authorizationCode:
        token = code.tokenUrl or _discover(scheme, "token_endpoint")
        return Endpoints(
            grant=auth.OAuthGrantType.AUTHORIZATION_CODE,
            authorization=code.authorizationUrl or _discover(scheme, "authorization_endpoint"),
            token=token,
            refresh=code.refreshUrl or token,
            scopes=tuple(code.scopes),
        )
    raise ValueError(
        "The OAuth2 scheme has neither an authorizationCode nor a clientCredentials flow. The implicit and password "
        "flows are not supported: they expose tokens or passwords to the program."
    )


def _discover(scheme: OAuth2, name: str) -> str:
    issuer = scheme.issuer_url if isinstance(scheme, auth.ExtendedOAuth2) else None
    if not issuer:
        # This message is the same as in ADK.
        raise ValueError("OAuth scheme info is missing, and auto-discovery has failed to fill them in.")
    parts = urlsplit(issuer)
    base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    places = [f"{base}/.well-known/{kind}{path}" for kind in ("oauth-authorization-server", "openid-configuration")]
    return _fetch_metadata([*places, f"{base}{path}/.well-known/openid-configuration"], issuer=issuer)[name]


def find_issuer(config: AuthConfig) -> str | None:
    """Return the issuer that a scheme names, or None if it does not name one."""
    match config.auth_scheme:
        case auth.ExtendedOAuth2(issuer_url=str(issuer)):
            return issuer
        case auth.OpenIdConnect(openIdConnectUrl=document):
            return _parse_issuer(document)
        case _:
            return None


def _parse_issuer(document: str) -> str | None:
    """Return the issuer that the metadata at a URL must name (OpenID Connect Discovery 4.3, RFC 8414 3.3).

    Return None if the URL does not have the standard form, with `/.well-known/`.
    """
    base, well_known, rest = document.partition("/.well-known/")
    return f"{base}/{rest.partition('/')[2]}" if well_known else None


def _fetch_metadata(places: list[str], issuer: str | None) -> dict[str, str]:
    """Return a provider's metadata from the first URL where it is valid and names the issuer, if one is given.

    Metadata is not valid if an endpoint uses plain HTTP and is not on this machine.

    Only fields that contain text are returned.

    Raises:
        AuthorizationFailed: None of the URLs has such metadata.
    """
    _import_client()  # its error names the extra to install
    import httpx2

    for place in places:
        try:
            metadata = httpx2.get(place, timeout=TIMEOUT_S).raise_for_status().json()
        except (httpx2.HTTPError, ValueError):
            continue
        # Secrets are sent to these URLs, and users open them, so they must use HTTPS or refer to this machine.
        endpoints = [metadata.get(name) for name in _ENDPOINTS] if isinstance(metadata, dict) else [None]
        if not all(isinstance(url, str) and is_private_url(url) for url in endpoints):
            continue
        # Ignore metadata from a different issuer, which could send the user to that issuer's login page.
        if issuer is None or str(metadata.get("issuer")).rstrip("/") == issuer.rstrip("/"):
            return {name: value for name, value in metadata.items() if isinstance(value, str)}
    raise AuthorizationFailed(
        f"Provider metadata was not found at {' or '.join(places)}. It must name this issuer and https endpoints."
    )


def get_client(config: AuthConfig) -> OAuth2Auth:
    """Return the OAuth client of a tool's configuration.

    Raises:
        ValueError: The configuration has no client, or the client has no `client_id`.
    """
    # These messages are the same as in ADK.
    kind = f"Auth Scheme {getattr(config.auth_scheme.type_, 'value', config.auth_scheme.type_)}"
    if config.raw_auth_credential is None:
        raise ValueError(f"{kind} requires auth_credential.")
    if config.raw_auth_credential.oauth2 is None:
        raise ValueError(f"{kind} requires oauth2 in auth_credential.")
    if not config.raw_auth_credential.oauth2.client_id:
        raise ValueError(f"{kind} requires client_id in auth_credential.oauth2.")
    return config.raw_auth_credential.oauth2


def add_authorization_url(config: AuthConfig) -> AuthCredential:
    """Return the tool's credential with a new `auth_uri`, its `state`, and the `code_verifier` for the code exchange.

    If the credential already has an `auth_uri`, keep that URI and only add a `state` if it lacks one.

    Raises:
        ValueError: The configuration is incomplete, or its OAuth flow does not involve a user.
        AuthorizationFailed: The provider's endpoints cannot be discovered.
    """
    client = get_client(config).model_copy(deep=True)
    if client.code_challenge_method not in (None, "S256"):
        raise ValueError(
            f"Unsupported code_challenge_method: {client.code_challenge_method}. Only 'S256' is supported."
        )
    assert config.raw_auth_credential is not None
    credential = config.raw_auth_credential.model_copy(update={"oauth2": client})
    if client.auth_uri:
        query = parse_qs(urlsplit(client.auth_uri).query)
        client.state = query["state"][0] if "state" in query else client.state or secrets.token_urlsafe(32)
        if "state" not in query:
            client.auth_uri += f"{'&' if '?' in client.auth_uri else '?'}state={client.state}"
        return credential
    places = find_endpoints(config)
    if places.grant is not auth.OAuthGrantType.AUTHORIZATION_CODE:
        raise ValueError(
            "The clientCredentials flow does not involve a user. Make the tool an AuthenticatedFunctionTool, which "
            "fetches the token itself."
        )
    client.code_verifier = client.code_verifier or secrets.token_urlsafe(48)
    client.code_challenge_method = "S256"
    params = {"prompt": client.prompt or "consent", "audience": client.audience, "nonce": client.nonce}
    client.auth_uri, client.state = _import_client()(
        None, client.client_id, redirect_uri=client.redirect_uri, code_challenge_method="S256"
    ).create_authorization_url(
        places.authorization,
        state=secrets.token_urlsafe(32),
        code_verifier=str(client.code_verifier),
        scope=" ".join(places.scopes),
        access_type="offline",
        **_drop_empty(params),
    )
    return credential


def exchange_code(config: AuthConfig, *, code: str, code_verifier: str | None, redirect_uri: str | None) -> OAuth2Auth:
    """Exchange an authorization code for tokens.

    Raises:
        AuthorizationFailed: The provider did not issue tokens.
    """
    return _fetch_tokens(
        config, "authorization_code", code=code, code_verifier=code_verifier, redirect_uri=redirect_uri
    )


def fetch_for_client(config: AuthConfig) -> OAuth2Auth:
    """Fetch a token for the client itself, using the client credentials flow.

    Raises:
        AuthorizationFailed: The provider did not issue a token.
    """
    return _fetch_tokens(
        config,
        "client_credentials",
        scope=" ".join(find_endpoints(config).scopes),
        audience=get_client(config).audience,
    )


def refresh(config: AuthConfig, expired: OAuth2Auth) -> OAuth2Auth:
    """Exchange a refresh token for new tokens. Keep the old refresh and ID tokens if the response has no new ones.

    Raises:
        AuthorizationFailed: The provider did not issue tokens. `revoked` is True if the user must log in again.
    """
    tokens = _fetch_tokens(config, "refresh_token", refresh_token=expired.refresh_token)
    tokens.refresh_token = tokens.refresh_token or expired.refresh_token
    tokens.id_token = tokens.id_token or expired.id_token
    return tokens


def is_expired(credential: AuthCredential | None) -> bool:
    """Return whether a credential has a token that has expired or expires within `LEEWAY_S` seconds.

    Return False if the expiry time is unknown.
    """
    tokens = None if credential is None else credential.oauth2
    return tokens is not None and tokens.expires_at is not None and tokens.expires_at <= time.time() + LEEWAY_S


def _fetch_tokens(config: AuthConfig, grant: str, **params: str | None) -> OAuth2Auth:
    _import_client()  # its error names the extra to install
    import httpx2

    places, registered = find_endpoints(config), get_client(config)
    url = places.refresh if grant == "refresh_token" else places.token
    host = urlsplit(url).netloc.rpartition("@")[2]
    with _make_client(registered, places) as client:
        from authlib.integrations.httpx_client import OAuthError

        try:
            token = client.fetch_token(url, grant_type=grant, **_drop_empty(params))
        except OAuthError as error:
            code = error_code(error.error)
            raise AuthorizationFailed(f"{host} refused the {grant}: {code}.", revoked=code == "invalid_grant") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TypeError) as error:
            reason = type(error).__name__
            if isinstance(error, httpx2.HTTPStatusError):
                reason = f"status {error.response.status_code}"
            raise AuthorizationFailed(f"{host} did not issue a token for the {grant} ({reason}).") from None
    if not isinstance(token.get("access_token"), str):
        raise AuthorizationFailed(f"The response of {host} to the {grant} has no access token.")
    expires_at, expires_in = token.get("expires_at"), token.get("expires_in")
    return auth.OAuth2Auth(
        client_id=registered.client_id,
        access_token=token["access_token"],
        refresh_token=token.get("refresh_token"),
        id_token=token.get("id_token"),
        expires_at=int(expires_at) if expires_at else None,
        expires_in=int(expires_in) if expires_in else None,
        token_endpoint_auth_method=registered.token_endpoint_auth_method,
    )


def error_code(error: object) -> str:
    """Return a provider's error code for messages, or `with an error` for other text, which may contain a secret."""
    return str(error) if _ERROR_CODE.fullmatch(str(error)) else "with an error"


def _drop_empty(params: Mapping[str, str | None]) -> dict[str, str]:
    return {name: str(value) for name, value in params.items() if value}


def _import_client() -> Any:
    """Import authlib's client without its HTTP part, which takes 0.1 s to import."""
    try:
        from authlib.oauth2 import OAuth2Client  # type: ignore[import-untyped]  # it has no types
    except ImportError:
        raise AuthorizationFailed("OAuth requires the extra `auth`: pip install 'waystation[auth]'.") from None
    return OAuth2Client


def _make_client(registered: OAuth2Auth, places: Endpoints) -> OAuth2Client:
    from authlib.integrations.httpx_client import OAuth2Client

    method: str | None = registered.token_endpoint_auth_method
    if not registered.client_secret and method != "private_key_jwt":
        method = "none"
    client = OAuth2Client(
        registered.client_id,
        registered.client_secret,
        redirect_uri=registered.redirect_uri,
        token_endpoint_auth_method=method,
        code_challenge_method="S256",
        timeout=TIMEOUT_S,
        verify=default_ssl_context(),
    )
    if method in ("client_secret_jwt", "private_key_jwt"):
        from authlib.oauth2.rfc7523 import ClientSecretJWT, PrivateKeyJWT  # type: ignore[import-untyped]  # as above

        signature = ClientSecretJWT if method == "client_secret_jwt" else PrivateKeyJWT
        client.register_client_auth_method(signature(places.token))
    return client


def add_client(config: AuthConfig, credential: AuthCredential) -> AuthCredential:
    """Add the tool's client to a stored credential, as in ADK, because stores leave out the client secret."""
    registered = config.raw_auth_credential.oauth2 if config.raw_auth_credential is not None else None
    if registered is None or credential.oauth2 is None:
        return credential
    client = {"client_id": registered.client_id, "client_secret": registered.client_secret}
    return credential.model_copy(update={"oauth2": credential.oauth2.model_copy(update=client)})
