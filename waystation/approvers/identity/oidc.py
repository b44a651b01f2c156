"""OpenID logins for `waystation web`, using the authorization code flow with PKCE, state and nonce.

The state is also set as a cookie in the browser that started the login. Without it, an attacker could finish their own
login in another person's browser.
"""

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from cachetools import TTLCache

from waystation.approvers.identity.admission import Admission
from waystation.approvers.identity.identity_file import Configuration, OidcSection
from waystation.approvers.identity.keys import FETCH_LIMIT_S, FRESH_S, IssuerKeys, discover_endpoint
from waystation.approvers.identity.tokens import MAX_JWT_CHARS
from waystation.approvers.identity.verification import Issuer
from waystation.core.approval import Verified
from waystation.core.errors import AuthorizationFailed, IdentityUnavailable, NotAllowed
from waystation.core.payload import JsonObject
from waystation.tls import default_ssl_context

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import AsyncOAuth2Client  # type: ignore[import-untyped]  # it has no types

LOGIN_LIMIT_S = 600.0
"""How long one login may take, in seconds."""
MAX_LOGINS = 10_000
"""The maximum number of unfinished logins. If there are more, the oldest is dropped, so that repeated requests cannot
exhaust memory.
"""
MAX_PARAMETER_CHARS = 4_000
REFUSALS = frozenset(
    {
        *("access_denied", "account_selection_required", "consent_required", "interaction_required", "invalid_client"),
        *("invalid_grant", "invalid_request", "invalid_scope", "login_required", "server_error"),
        *("temporarily_unavailable", "unauthorized_client", "unsupported_grant_type", "unsupported_response_type"),
    }
)
"""Error codes of OAuth and OpenID Connect, which messages may contain. Any other text from a provider may quote the
code or the client secret.
"""


class LoggedIn(NamedTuple):
    """A person who has logged in."""

    who: Verified
    name: str | None
    """The person's display name at the provider, or None if the ID token does not contain one."""
    next: str
    """The path that the browser requested before the login started."""
    roles: frozenset[str] = frozenset()
    """The person's roles in the web application."""
    claims: Mapping[str, Any] = MappingProxyType({})
    """The claims with which `Admission.check` can repeat its decision."""


class _PendingLogin(NamedTuple):
    """A login that has started but not finished."""

    verifier: str
    nonce: str
    redirect_uri: str
    next: str


class OidcLogin:
    """Sends browsers to an identity provider, and identifies the users when they return."""

    def __init__(
        self,
        section: OidcSection,
        secret: str | None,
        keys: IssuerKeys,
        *,
        admission: Admission | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._section, self._secret, self._clock = section, secret, clock
        self._issuer = Issuer(section, (section.client_id,), keys)
        self.admission = admission or Admission(section)
        self._pending: TTLCache[str, _PendingLogin] = TTLCache(MAX_LOGINS, LOGIN_LIMIT_S, timer=clock)
        self._endpoints: TTLCache[str, str] = TTLCache(2, FRESH_S, timer=clock)

    @classmethod
    def of(cls, configuration: Configuration, *, clock: Callable[[], float] = time.time) -> "OidcLogin":
        """Create a login for the provider that is configured in `[oidc]`.

        Raises:
            InvalidConfiguration: The section is missing or invalid.
        """
        section = configuration.need(configuration.oidc, "oidc", "it names the provider where people log in")
        name = section.client_secret_file
        secret = configuration.secret("oidc.client_secret_file", name) if name else None
        admission, keys = (
            Admission(section, configuration.file),
            IssuerKeys.of(configuration, "oidc", section.issuer, None),
        )
        return cls(section, secret, keys, admission=admission, clock=clock)

    async def begin(self, redirect_uri: str, next: str = "/") -> tuple[str, str]:
        """Start a login. Return the URL to redirect the browser to, and the state to set as a cookie.

        Args:
            redirect_uri: The redirect URI that is registered with the provider.
            next: The path that the browser requested, where it goes after the login.

        Raises:
            IdentityUnavailable: The provider is unreachable.
        """
        endpoint = await self._find_endpoint("authorization_endpoint")
        state, verifier, nonce = (secrets.token_urlsafe(32) for _ in range(3))
        async with self._make_client() as client:
            url, _ = client.create_authorization_url(
                endpoint, state=state, nonce=nonce, code_verifier=verifier, redirect_uri=redirect_uri
            )
        self._pending[state] = _PendingLogin(verifier, nonce, redirect_uri, next)
        return url, state

    async def finish(self, returned: Mapping[str, str], state: str | None) -> LoggedIn:
        """Finish a login and return the person who logged in. Each login can be finished only once.

        Args:
            returned: The query parameters of the URL that the provider redirected the browser to.
            state: The state in the browser's cookie.

        Raises:
            AuthorizationFailed: The login failed. The message does not contain text from the provider.
            IdentityUnavailable: The provider is unreachable.
        """
        returned_state = returned.get("state", "").encode(errors="replace")
        if not state or not hmac.compare_digest(returned_state, state.encode(errors="replace")):
            raise AuthorizationFailed(
                "This login was started in another browser or by another server process, or cookies are disabled. Log "
                "in again."
            )
        login = self._pending.pop(state, None)
        if login is None:
            raise AuthorizationFailed(
                "This login is already finished, took too long, or was started by another server process. Log in again."
            )
        if returned.get("iss", self._section.issuer) != self._section.issuer:
            raise AuthorizationFailed("The response came from another provider. Log in again.")
        code = returned.get("code", "")
        if "error" in returned or not 0 < len(code) <= MAX_PARAMETER_CHARS:
            reason = _format_code(returned.get("error"))
            raise AuthorizationFailed(f"The provider refused the login{reason}. Log in again.")
        token = await self._fetch_id_token(code, login)
        try:
            claims = await self._issuer.verify(token, now=self._clock())
            who = self._issuer.identify(claims)
            roles = self.admission.check(claims, who)
        except IdentityUnavailable as error:
            raise IdentityUnavailable(f"{error} You are not logged in. Try again in a minute.") from None
        except NotAllowed as refused:
            raise AuthorizationFailed(f"The provider's token does not identify a person. {refused}") from None
        audience = claims["aud"]
        if claims.get("nonce") != login.nonce or (
            isinstance(audience, list) and len(audience) > 1 and claims.get("azp") != self._section.client_id
        ):
            raise AuthorizationFailed("The provider's token belongs to another login. Log in again.")
        name = claims.get("name")
        return LoggedIn(
            who, name[:200] if isinstance(name, str) else None, login.next, roles, self.admission.select(claims)
        )

    async def _fetch_id_token(self, code: str, login: _PendingLogin) -> str:
        """Exchange an authorization code for an ID token."""
        import httpx2
        from authlib.integrations.httpx_client import OAuthError

        endpoint = await self._find_endpoint("token_endpoint")
        try:
            async with self._make_client() as client:
                response: JsonObject = await client.fetch_token(
                    endpoint,
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=login.verifier,
                    redirect_uri=login.redirect_uri,
                )
        except httpx2.HTTPStatusError as error:
            raise IdentityUnavailable(
                f"The provider returned status {error.response.status_code}. Try again."
            ) from None
        except OAuthError as error:
            remedy = "Log in again."
            if error.error == "invalid_client":
                remedy = "Check the `client_id`, the secret and the `client_authentication` in [oidc]."
            raise AuthorizationFailed(f"The provider refused the login{_format_code(error.error)}. {remedy}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise AuthorizationFailed(f"The provider's response is not a token ({type(error).__name__}).") from None
        except httpx2.HTTPError as error:
            raise IdentityUnavailable(f"The provider is unreachable ({type(error).__name__}). Try again.") from None
        token = response.get("id_token")
        if not isinstance(token, str) or len(token) > MAX_JWT_CHARS:
            raise AuthorizationFailed("The provider did not issue an ID token. Add `openid` to the scopes.")
        return token

    def _make_client(self) -> "AsyncOAuth2Client":
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        return AsyncOAuth2Client(
            self._section.client_id,
            self._secret,
            scope=" ".join(self._section.scopes),
            code_challenge_method="S256",
            timeout=FETCH_LIMIT_S,
            verify=default_ssl_context(),
            token_endpoint_auth_method=self._section.client_authentication if self._secret else "none",
        )

    async def _find_endpoint(self, name: str) -> str:
        """Return an endpoint URL from the provider's metadata, which is cached."""
        url = self._endpoints.get(name)
        if url is None:
            try:
                url = self._endpoints[name] = await discover_endpoint(self._section.issuer, name)
            except (OSError, ValueError) as error:
                raise IdentityUnavailable(f"The provider {self._section.issuer} is unavailable: {error}.") from None
        return url


def _format_code(error: object) -> str:
    return f" ({error})" if error in REFUSALS else ""
