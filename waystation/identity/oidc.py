"""Logins of people at an OpenID provider, for `waystation web`: authorization code with PKCE, state and nonce.

The state belongs into a cookie of the browser that began: otherwise somebody else could finish the login in it.
"""

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from cachetools import TTLCache

from waystation.core import AuthorizationFailed, IdentityUnavailable, JsonObject, NotAllowed, Verified
from waystation.identity.configuration import Configuration, OidcSection
from waystation.identity.keys import FETCH_LIMIT_S, FRESH_S, IssuerKeys, endpoint
from waystation.identity.tokens import MAX_JWT_CHARS
from waystation.identity.verification import Issuer

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import AsyncOAuth2Client  # type: ignore[import-untyped]  # it has no types

LOGIN_LIMIT_S = 600.0
"""How long somebody may take at the provider."""
MAX_LOGINS = 10_000
"""Logins under way; one more forgets the oldest, so that whoever opens the page often fills nothing."""
MAX_PARAMETER_CHARS = 4_000
REFUSALS = frozenset(
    {
        *("access_denied", "account_selection_required", "consent_required", "interaction_required", "invalid_client"),
        *("invalid_grant", "invalid_request", "invalid_scope", "login_required", "server_error"),
        *("temporarily_unavailable", "unauthorized_client", "unsupported_grant_type", "unsupported_response_type"),
    }
)
"""How OAuth and OpenID Connect name refusals. A provider's other words may quote the code, or the client's secret."""


class LoggedIn(NamedTuple):
    """Who has logged in."""

    who: Verified
    name: str | None
    """As the provider shows the person."""
    next: str
    """The path that the browser asked for before."""


class _Begun(NamedTuple):
    """A login that is not finished."""

    verifier: str
    nonce: str
    redirect_uri: str
    next: str


class OidcLogin:
    """Sends people to a provider, and finds out who comes back."""

    def __init__(
        self, section: OidcSection, secret: str | None, keys: IssuerKeys, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._section, self._secret, self._clock = section, secret, clock
        self._issuer = Issuer(section, (section.client_id,), keys)
        self._begun: TTLCache[str, _Begun] = TTLCache(MAX_LOGINS, LOGIN_LIMIT_S, timer=clock)
        self._endpoints: TTLCache[str, str] = TTLCache(2, FRESH_S, timer=clock)

    @classmethod
    def of(cls, configuration: Configuration, *, clock: Callable[[], float] = time.time) -> "OidcLogin":
        """Return the login at the provider that `[oidc]` names.

        Raises:
            InvalidConfiguration: There is no such section, or it cannot be used.
        """
        section = configuration.need(configuration.oidc, "oidc", "it says where people log in")
        name = section.client_secret_file
        secret = configuration.secret("oidc.client_secret_file", name) if name else None
        return cls(section, secret, IssuerKeys.of(configuration, "oidc", section.issuer, None), clock=clock)

    async def begin(self, redirect_uri: str, next: str = "/") -> tuple[str, str]:
        """Return the address to which a browser is sent, and the state, which belongs into a cookie of it.

        Args:
            redirect_uri: Where the provider sends it back, as is registered there.
            next: The path that the browser asked for.

        Raises:
            IdentityUnavailable: The provider is not reached.
        """
        place = await self._endpoint("authorization_endpoint")
        state, verifier, nonce = (secrets.token_urlsafe(32) for _ in range(3))
        async with self._client() as client:
            url, _ = client.create_authorization_url(
                place, state=state, nonce=nonce, code_verifier=verifier, redirect_uri=redirect_uri
            )
        self._begun[state] = _Begun(verifier, nonce, redirect_uri, next)
        return url, state

    async def finish(self, returned: Mapping[str, str], state: str | None) -> LoggedIn:
        """Return who has come back from the provider. Each login is finished once.

        Args:
            returned: The query of the address to which the provider has sent the browser.
            state: From the browser's cookie.

        Raises:
            AuthorizationFailed: Nobody has logged in. The message holds nothing of the provider's.
            IdentityUnavailable: The provider is not reached.
        """
        given = returned.get("state", "")
        if not state or not hmac.compare_digest(given.encode(errors="replace"), state.encode(errors="replace")):
            raise AuthorizationFailed(
                "This login was begun in another browser, or at another server process, or cookies are off; log in "
                "again."
            )
        begun = self._begun.pop(state, None)
        if begun is None:
            raise AuthorizationFailed(
                "This login was finished before, took too long, or was begun at another server process; log in again."
            )
        if returned.get("iss", self._section.issuer) != self._section.issuer:
            raise AuthorizationFailed("Another provider answered than the one that was asked; log in again.")
        code = returned.get("code", "")
        if "error" in returned or not 0 < len(code) <= MAX_PARAMETER_CHARS:
            raise AuthorizationFailed(f"The provider let nobody in{_named(returned.get('error'))}; log in again.")
        token = await self._token(code, begun)
        try:
            claims = await self._issuer.claims(token, now=self._clock())
            who = self._issuer.who(claims)
        except IdentityUnavailable as error:
            raise IdentityUnavailable(f"{error} Nobody is logged in; try again in a minute.") from None
        except NotAllowed as refused:
            raise AuthorizationFailed(f"The provider's token does not say who logged in. {refused}") from None
        audience = claims["aud"]
        if claims.get("nonce") != begun.nonce or (
            isinstance(audience, list) and len(audience) > 1 and claims.get("azp") != self._section.client_id
        ):
            raise AuthorizationFailed("The provider's token is of another login; log in again.")
        name = claims.get("name")
        return LoggedIn(who, name[:200] if isinstance(name, str) else None, begun.next)

    async def _token(self, code: str, begun: _Begun) -> str:
        """Exchange a code for an id token."""
        import httpx2
        from authlib.integrations.httpx_client import OAuthError

        place = await self._endpoint("token_endpoint")
        try:
            async with self._client() as client:
                answer: JsonObject = await client.fetch_token(
                    place,
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=begun.verifier,
                    redirect_uri=begun.redirect_uri,
                )
        except httpx2.HTTPStatusError as error:
            raise IdentityUnavailable(f"The provider answered {error.response.status_code}; try again.") from None
        except OAuthError as error:
            remedy = "log in again."
            if error.error == "invalid_client":
                remedy = "it does not take the `client_id`, the secret or the `client_authentication` of [oidc]."
            raise AuthorizationFailed(f"The provider refused the login{_named(error.error)}; {remedy}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise AuthorizationFailed(f"The provider's answer is no token ({type(error).__name__}).") from None
        except httpx2.HTTPError as error:
            raise IdentityUnavailable(f"The provider is not reached ({type(error).__name__}); try again.") from None
        token = answer.get("id_token")
        if not isinstance(token, str) or len(token) > MAX_JWT_CHARS:
            raise AuthorizationFailed("The provider gave no id token; is `openid` among the scopes?")
        return token

    def _client(self) -> "AsyncOAuth2Client":
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        return AsyncOAuth2Client(
            self._section.client_id,
            self._secret,
            scope=" ".join(self._section.scopes),
            code_challenge_method="S256",
            timeout=FETCH_LIMIT_S,
            token_endpoint_auth_method=self._section.client_authentication if self._secret else "none",
        )

    async def _endpoint(self, name: str) -> str:
        """Return an address of the provider's, as it publishes it."""
        found = self._endpoints.get(name)
        if found is None:
            try:
                found = self._endpoints[name] = await endpoint(self._section.issuer, name)
            except (OSError, ValueError) as error:
                raise IdentityUnavailable(f"The provider {self._section.issuer} is not reached: {error}.") from None
        return found


def _named(error: object) -> str:
    return f" ({error})" if error in REFUSALS else ""
